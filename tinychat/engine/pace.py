"""How a reply goes on: token after token, at most so many a second, one at a time, or to the end of a sentence."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Final

from tinychat.protocol import Pace

_MAY_END: Final = re.compile(rb"""[.!?]["')\]*_]*\Z""")
"""A sentence that ends here, if white space follows."""
_LONGEST_END: Final = 16
"""Bytes that are looked at for it."""


class Pacer:
    """Tells before each token whether to wait, and how long."""

    def __init__(self, pace: Pace, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin with a pace; `clock` gives seconds."""
        self._clock = clock
        self._due = -math.inf
        self._tail = b""
        """The end of what was said since the pace was set, white space before the first word left out."""
        self._left: float = 0
        """Tokens that may still come."""
        self.set(pace)

    def set(self, pace: Pace) -> None:
        """Go on like this from the next token on."""
        self._pace = pace
        self._left = {"pause": 0, "step": 1}.get(pace.mode, math.inf)
        self._tail = b""
        if pace.rate is None:
            self._due = -math.inf

    @property
    def paused(self) -> bool:
        """Whether only another pace lets the next token come."""
        return self._left == 0

    @property
    def rate(self) -> float | None:
        """Tokens a second at most; None: no limit."""
        return self._pace.rate

    @property
    def stepped(self) -> bool:
        """Whether somebody looks at each token for itself."""
        return self._pace.mode in ("pause", "step")

    @property
    def wait(self) -> float | None:
        """Seconds until the next token may come; None: not by itself."""
        return None if self.paused else max(0.0, self._due - self._clock())

    def holds(self, next_piece: Callable[[], bytes]) -> bool:
        """Tell whether the next token, whose bytes `next_piece` finds out, has to wait."""
        if self._pace.mode == "sentence" and not self.paused and self._ended(next_piece):
            self._left = 0
        return self.paused or self._due > self._clock()

    def said(self, piece: bytes) -> None:
        """Count a token that was drawn."""
        self._left -= 1
        if self._pace.mode == "sentence":
            self._tail = (self._tail + piece).lstrip() if not self._tail else (self._tail + piece)[-_LONGEST_END:]
        if self._pace.rate is not None:
            self._due = max(self._due, self._clock()) + 1 / self._pace.rate

    def _ended(self, next_piece: Callable[[], bytes]) -> bool:
        """Whether a sentence has ended: at a full stop or its like before white space or the end, or at a newline."""
        if not self._tail:
            return False
        if self._tail.endswith(b"\n"):
            return True
        if not _MAY_END.search(self._tail):
            return False
        following = next_piece()
        return not following or following[:1].isspace()
