"""The seconds of a reply, by a clock that the test moves."""

from __future__ import annotations

import pytest

from tinychat.engine import timing
from tinychat.engine.timing import Timing


def test_time_paused_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a token's seconds nor in the reply's, before the first token or between two."""
    now = [100.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    taken = Timing()

    def after(seconds: float) -> None:
        now[0] += seconds

    after(2)
    taken.prefilled()
    after(1)
    taken.rest()
    after(50)
    taken.go_on()
    taken.go_on()
    after(0.5)
    assert taken.token(0, 0) == 1.5
    after(0.25)
    taken.rest()
    after(1000)
    taken.go_on()
    assert taken.token(1, 0) == 0.25
    assert (taken.prefill, taken.first_token, taken.decode) == (2, 3.5, 0.25)


def test_dictated_tokens_are_no_decode_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode is timed from the first token that was drawn: its logits came with the prompt."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    taken = Timing()
    for index, at in enumerate((1, 2, 3, 10, 14)):
        now[0] = at
        taken.token(index, 2)
    assert (taken.first_token, taken.decode) == (1, 11)
