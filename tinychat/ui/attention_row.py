"""What a token was decided from, in numbers that can be drawn: one row of attention."""

from __future__ import annotations

import heapq
import math
from typing import Final

from tinychat.protocol import Attended
from tinychat.ui.measures import GLYPHS

LISTED: Final = 9
"""How many of the largest weights are told by name: as many as there are digits to go to them."""


class AttentionRow:
    """The weights of a row, cut into levels by halves of the largest."""

    def __init__(self, attended: Attended, *, without_first: bool) -> None:
        """Take the weights; `without_first` leaves the first position out and has the others sum to 1 again."""
        self.attended = attended
        self.without_first = without_first
        self.weights = list(attended.weights)
        """As they are drawn."""
        self.left_out: float | None = None
        """What the first position was given, where it is left out."""
        if without_first and not attended.first and len(self.weights) > 1:
            self.left_out, self.weights[0] = self.weights[0], 0.0
            rest = math.fsum(self.weights)
            if not self.is_maximum and rest > 0:
                self.weights = [weight / rest for weight in self.weights]
        self.sum = math.fsum(self.weights)
        self.most = max(self.weights, default=0.0)
        self.bounds = tuple(self.most / 2 ** (len(GLYPHS) - level) for level in range(len(GLYPHS)))
        """Where each level begins."""
        seen = range(attended.first, len(self.weights))
        self.largest = tuple(heapq.nlargest(LISTED, seen, key=self.weights.__getitem__))
        """Positions, the largest weight first."""

    @property
    def is_maximum(self) -> bool:
        """Whether it is the maximum over all heads, which is no distribution."""
        return self.attended.layer is None

    @property
    def bits(self) -> float:
        """Entropy of the row, in bits (Shannon 1948)."""
        return -math.fsum(weight * math.log2(weight) for weight in self.weights if weight > 0)

    def level(self, position: int) -> int | None:
        """Return 0 to 4, None for what is given less, or nothing."""
        weight = self.weights[position]
        reached = sum(weight >= bound for bound in self.bounds) if weight > 0 else 0
        return reached - 1 if reached else None
