"""Numbers read as the screen's sketches have them."""

from __future__ import annotations

import pytest

from tinychat.ui import figures


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        (figures.count(8192), "8,192"),
        (figures.parameters(134_515_008), "135 M"),
        (figures.parameters(1_100_048_384), "1.1 B"),
        (figures.parameters(999_999_999), "1.0 B"),
        (figures.parameters(512), "512"),
        (figures.memory(98_362_432), "98 MB"),
        (figures.memory(7_340_032), "7.3 MB"),
        (figures.memory(0), "0 B"),
        (figures.memory(999_999), "1.0 MB"),
        (figures.rate(212.4), "212 tok/s"),
        (figures.rate(8.31), "8.3 tok/s"),
        (figures.duration(0.0412), "41 ms"),
        (figures.duration(1.234), "1.2 s"),
        (figures.duration(90), "1 min 30 s"),
        (figures.share(6, 8192), "0.1 %"),
        (figures.share(0, 8192), "0 %"),
        (figures.share(900, 1024), "88 %"),
        (figures.share(1, 10**9), "0.1 %"),
        (figures.share(1, 0), "0 %"),
    ],
)
def test_figures(drawn: str, expected: str) -> None:
    """Would catch: a wrong unit at a border, and something that reads as nothing."""
    assert drawn == expected
