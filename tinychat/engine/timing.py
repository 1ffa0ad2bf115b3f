"""The seconds of one reply. Its clock stands still while the person has the reply wait."""

from __future__ import annotations

import time


class Timing:
    """Takes the times of a reply's steps."""

    def __init__(self) -> None:
        """Start with the command."""
        self._rested = 0.0
        self._resting: float | None = None
        self._started = self._now()
        self._prefilled = self._first = self._drawn = self._last = self._since = self._started

    def rest(self) -> None:
        """Stop the clock until `go_on`."""
        self._resting = time.perf_counter()

    def go_on(self) -> None:
        """Let the clock run again, if it stood still."""
        if self._resting is not None:
            self._rested += time.perf_counter() - self._resting
            self._resting = None

    def prefilled(self) -> None:
        """Some of the prompt was computed."""
        self._prefilled = self._since = self._now()

    def token(self, index: int, forced: int) -> float:
        """Take the time of a token, where the first `forced` ones were dictated; return the seconds it took."""
        before = self._since
        self._last = self._since = self._now()
        if index == 0:
            self._first = self._last
        if index <= forced:
            self._drawn = self._last
        return self._last - before

    @property
    def prefill(self) -> float:
        """Seconds from the command to the end of the prompt."""
        return self._prefilled - self._started

    @property
    def decode(self) -> float:
        """Seconds from the first token that was drawn to the last."""
        return self._last - self._drawn

    @property
    def first_token(self) -> float:
        """Seconds from the command to the first token; 0 where there is none."""
        return self._first - self._started

    def _now(self) -> float:
        return time.perf_counter() - self._rested
