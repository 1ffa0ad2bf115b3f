"""When a reply waits, without a clock that runs by itself."""

from __future__ import annotations

import pytest

from tinychat.engine.pace import Pacer
from tinychat.protocol import Pace


def run(pace: Pace, pieces: list[bytes]) -> bytes:
    """Return what is said until it waits."""
    pacer, said = Pacer(pace), b""
    for place, piece in enumerate(pieces):
        following = piece
        if pacer.holds(lambda following=following: following):
            assert pacer.wait is None
            return said
        pacer.said(piece)
        said += pieces[place]
    return said


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b"Hi", b" you", b".", b" And", b"."], b"Hi you."),
        ([b"It", b" is", b" 3", b".", b"14", b".", b"\n", b"So"], b"It is 3.14."),
        ([b"\n\n", b"So", b"?", b" No"], b"\n\nSo?"),
        ([b"a", b"\n", b"b"], b"a\n"),
        ([b'"Go', b'!"', b" he"], b'"Go!"'),
        ([b"e.g", b".", b"x", b" y"], b"e.g.x y"),
        ([b"End", b".", b"", b"x"], b"End."),
        ([b"...", b"well"], b"...well"),
    ],
)
def test_sentences(pieces, said):
    """A full stop ends one where white space or the end follows, a newline always, unless nothing was said before it;
    catches decimals, and a sentence that is only the blank line after the last."""
    assert run(Pace("sentence"), pieces) == said


def test_steps():
    """One token each time, and none between."""
    pacer = Pacer(Pace("pause"))
    assert pacer.holds(lambda: b"x")
    for _ in range(2):
        pacer.set(Pace("step"))
        assert not pacer.holds(lambda: b"x")
        pacer.said(b"x")
        assert pacer.holds(lambda: b"x")
        assert pacer.wait is None
    pacer.set(Pace())
    for _ in range(5):
        assert not pacer.holds(lambda: b"x")
        pacer.said(b"x")


def test_rate():
    """At most so many a second, whenever they were ready; a pause is no debt to be made up for."""
    now = [100.0]
    pacer = Pacer(Pace(rate=4), clock=lambda: now[0])
    assert not pacer.holds(lambda: b"x")
    pacer.said(b"x")
    assert pacer.holds(lambda: b"x")
    assert pacer.wait == 0.25
    assert not pacer.paused
    now[0] += 0.2
    assert pacer.wait == pytest.approx(0.05)
    now[0] += 9
    assert not pacer.holds(lambda: b"x")
    pacer.said(b"x")
    assert pacer.wait == 0.25
    pacer.set(Pace())
    assert pacer.wait == 0
