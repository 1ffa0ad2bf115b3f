"""How fast a reply is being said, as seen by the screen; the engine's own figures replace it when the reply ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_WINDOW = 2.0
"""Seconds that the rate is the mean of."""


class Speedometer:
    """Counts tokens over the last two seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque()
        self._asked = 0.0
        self._resting = False
        self.total = 0
        """Tokens since `start`."""
        self.first_token_seconds: float | None = None
        """From `start` to the first token; late by up to one tick."""

    def start(self) -> None:
        """A reply was asked for."""
        self._marks.clear()
        self._resting = False
        self._asked = self._clock()
        self.total = 0
        self.first_token_seconds = None

    def add(self, tokens: int) -> None:
        """So many tokens came since the last call."""
        now = self._clock()
        if self._resting:
            self._marks.clear()
            self._resting = False
        if self.first_token_seconds is None:
            self.first_token_seconds = now - self._asked
        self.total += tokens
        self._marks.append((now, self.total))
        while len(self._marks) > 2 and now - self._marks[1][0] >= _WINDOW:
            self._marks.popleft()

    def rest(self) -> None:
        """The reply waits: the time until it goes on is not the engine's."""
        self._resting = True

    @property
    def rate(self) -> float:
        """Tokens a second; 0 until two batches have come."""
        if len(self._marks) < 2:
            return 0.0
        (then, before), (now, total) = self._marks[0], self._marks[-1]
        return (total - before) / (now - then) if now > then else 0.0
