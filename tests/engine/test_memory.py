"""What fits: the arithmetic of memory, its sentences, and what the operating system is asked."""

from __future__ import annotations

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinychat.engine import memory
from tinychat.errors import OutOfMemory


def fit(
    asked: int | None = None, positions: int = 100_000, weights: int = 0, per_token: int = 10, free: int = 0
) -> int:
    return memory.fit_context(
        asked=asked,
        positions=positions,
        weights=weights,
        cache_bytes=lambda tokens: tokens * per_token,
        free=free,
        name="m",
    )


@pytest.mark.parametrize(
    ("asked", "positions", "free", "expected"),
    [
        (None, 100_000, 10**9, 8192),  # nobody asked for more
        (None, 1024, 10**9, 1024),  # what the model was made for
        (None, 100_000, 20 * 6000, 6000),  # half of what is left
        (None, 100_000, 20 * 6000 - 1, 5999),
        (None, 100_000, 10 * 600, 512),  # the least a chat needs may take more than half
        (None, 100_000, 10 * 512, 512),
        (None, 300, 10 * 300, 300),  # a small model's all
        (30_000, 100_000, 10 * 30_000, 30_000),  # asked for: all there is, and more than the usual
        (17, 100_000, 10**9, 17),
    ],
)
def test_fit(asked, positions, free, expected):
    """Catches a share taken twice, a limit on the wrong side, a rounding up."""
    assert fit(asked, positions, free=free) == expected
    assert fit(asked, positions, weights=12345, free=free + 12345) == expected


@pytest.mark.parametrize(("asked", "free"), [(None, 10 * 512 - 1), (30_000, 10 * 30_000 - 1), (30_000, 0)])
def test_nothing_fits(asked, free):
    """One byte too few is too few; the sentence has all three numbers."""
    with pytest.raises(OutOfMemory) as caught:
        fit(asked, weights=7 * 10**9, free=free + 7 * 10**9)
    tokens = asked or 512
    for words in (
        "m needs 7 GB",
        memory.gigabytes(10 * tokens),
        f"{tokens:,} tokens",
        memory.gigabytes(free + 7 * 10**9),
    ):
        assert words in caught.value.summary
    assert caught.value.remedy


@given(
    st.one_of(st.none(), st.integers(1, 10**5)), st.integers(1, 10**5), st.integers(0, 10**6), st.integers(1, 10**4),
    st.integers(0, 10**9),
)  # fmt: skip
def test_what_fits_fits(asked, positions, weights, per_token, free):
    """For any numbers: never more than there is, than the model can, or than was asked for."""
    asked = None if asked is None else min(asked, positions)
    try:
        tokens = fit(asked, positions, weights, per_token, free)
    except OutOfMemory:
        assert weights + min(asked or 512, positions) * per_token > free
        return
    assert weights + tokens * per_token <= free
    assert 1 <= tokens <= positions
    assert tokens == asked if asked is not None else tokens <= 8192


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 1000),
        ({"memory.max": "max\n", "memory.current": "5", "memory.stat": "inactive_file 1\n"}, 1000),
        # A container's limit, less what it uses, of which the file cache can be given back.
        ({"memory.max": "600", "memory.current": "450", "memory.stat": "anon 9\ninactive_file 100\nx 2\n"}, 250),
        ({"memory.max": "9000", "memory.current": "450", "memory.stat": "inactive_file 100\n"}, 1000),
        ({"memory.max": "600", "memory.current": "900", "memory.stat": "inactive_file 100\n"}, 0),
        ({"memory.max": "600", "memory.current": "450", "memory.stat": "anon 9\n"}, 1000),
        ({"memory.max": "600"}, 1000),
    ],
)
def test_available(tmp_path, monkeypatch, files, expected):
    """The machine's, or its container's where that is less; a file that is missing or odd changes nothing."""
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1000})())
    assert memory.available() == expected


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (98_362_432, "98.4 MB"),
        (999_499_999, "999 MB"),
        (999_600_000, "1 GB"),
        (3_400_000_000, "3.4 GB"),
        (10**12, "1,000 GB"),
    ],
)
def test_gigabytes(count, text):
    """As people read it: catches 1e+03 MB."""
    assert memory.gigabytes(count) == text
