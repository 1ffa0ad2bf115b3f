"""What a token can be coloured by: five measures, each cut into five levels that are drawn as a colour and a glyph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tinychat.protocol import TokenEmitted
from tinychat.ui.reply_tokens import surprise

GLYPHS: Final = "▁▂▃▅▇"
"""A glyph a level, so that colour is never alone."""
UNKNOWN: Final = "·"
"""Drawn where the engine told no number."""
BAND: Final = 10
"""Tokens of one level where the position is what is drawn."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of each token, and what its levels are."""

    name: str
    value: Callable[[TokenEmitted], float | None]
    bounds: tuple[float, float, float, float]
    """Where the second, third, fourth and fifth level begin."""
    labels: tuple[str, str, str, str, str]
    """What a legend says of each level."""
    falling: bool = False
    """Whether the levels go from large numbers to small ones: the fifth is always what is most remarkable."""

    def level(self, token: TokenEmitted) -> int | None:
        """Return 0 to 4, None where the number isn't known."""
        value = self.value(token)
        if value is None or math.isnan(value):
            return None
        if self.falling:
            return sum(value < bound for bound in self.bounds)
        return sum(value >= bound for bound in self.bounds)

    def glyph(self, level: int | None) -> str:
        """Return the glyph of a level: the larger the number, the higher."""
        if level is None:
            return UNKNOWN
        return GLYPHS[len(GLYPHS) - 1 - level if self.falling else level]


def probability(token: TokenEmitted) -> float | None:
    """Return the token's own probability, before the sampler."""
    return None if token.logprob is None else math.exp(token.logprob)


def entropy_bits(token: TokenEmitted) -> float | None:
    """Return the entropy of the whole distribution before the sampler, in bits."""
    return None if token.entropy is None else token.entropy / math.log(2)


def _rank(token: TokenEmitted) -> float | None:
    return None if token.rank is None else float(token.rank)


def _band(token: TokenEmitted) -> float | None:
    return float(token.index // BAND % len(GLYPHS))


MEASURES: Final = (
    Measure("surprise", surprise, (0.5, 1.0, 3.0, 6.0), ("< 0.5", "< 1", "< 3", "< 6", "≥ 6 bits")),
    Measure("probability", probability, (0.9, 0.5, 0.2, 0.05), ("≥ 90 %", "≥ 50", "≥ 20", "≥ 5", "< 5 %"), True),
    Measure("entropy", entropy_bits, (0.5, 1.0, 2.0, 4.0), ("< 0.5", "< 1", "< 2", "< 4", "≥ 4 bits")),
    Measure("rank", _rank, (2, 3, 6, 21), ("1st", "2nd", "3rd-5th", "6th-20th", "later")),
    Measure("position", _band, (1, 2, 3, 4), ("1-10", "11-20", "21-30", "31-40", "41-50, and again")),
)
"""In the order in which a key goes through them."""
