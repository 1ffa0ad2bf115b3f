"""What values a sampler setting may take: read by sliders, flags, models.toml and the sampler alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Range:
    """The values a sampler setting may take; sliders, flags and the sampler read the same one."""

    low: float
    high: float
    step: float
    """One step of a slider."""
    integer: bool = False
    above_low: bool = False
    """Whether `low` itself is refused."""

    def describe(self) -> str:
        """Return the range in words, as error messages print it."""
        if math.isinf(self.high):
            return f"{_shown(self.low)} or more"
        return f"{'above ' if self.above_low else ''}{_shown(self.low)} to {_shown(self.high)}"

    def check(self, name: str, value: float) -> None:
        """Raise ValueError, with the range in its sentence, unless `value` lies in it (NaN and infinity don't)."""
        inside = math.isfinite(value) and self.low <= value <= self.high and not (self.above_low and value == self.low)
        if not inside:
            raise ValueError(f"{name} is {_shown(value)}, but has to be {self.describe()}.")
        if self.integer and value != int(value):
            raise ValueError(f"{name} is {_shown(value)}, but has to be a whole number.")


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


SAMPLER_RANGES: Final[dict[str, Range]] = {
    "temperature": Range(0.0, 5.0, 0.05),
    "top_k": Range(0, math.inf, 1, integer=True),
    "top_p": Range(0.0, 1.0, 0.01),
    "min_p": Range(0.0, 1.0, 0.01),
    "repetition_penalty": Range(0.0, 5.0, 0.01, above_low=True),
    "frequency_penalty": Range(-2.0, 2.0, 0.05),
    "presence_penalty": Range(-2.0, 2.0, 0.05),
    "speculate": Range(0, 8, 1, integer=True),
}
