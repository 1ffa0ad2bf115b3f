"""Numbers as single cells: a glyph whose height tells them, on a ground that does so too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from tinychat.ui.measures import GLYPHS

HEIGHTS: Final = "▁▂▃▄▅▆▇█"
NOT_FINITE: Final = "!"
"""Drawn for what is no number."""


def height(value: float, most: float) -> str:
    """Return the glyph of a value on a scale from 0 to `most`."""
    if not math.isfinite(value):
        return NOT_FINITE
    return HEIGHTS[_step(value, most, len(HEIGHTS))]


def strip(values: Sequence[float], most: float) -> tuple[tuple[str, str], ...]:
    """Return a cell a value, as spans of a line: neighbours on the same ground in one."""
    cells = [(height(value, most), _ground(value, most)) for value in values]
    grounds = groupby(cells, key=lambda cell: cell[1])
    return tuple(("".join(glyph for glyph, _ in stretch), name) for name, stretch in grounds)


def spark(values: Sequence[float], width: int) -> tuple[list[float], int]:
    """Return at most `width` numbers for a sparkline of `values`, and how many values each is the mean of."""
    size = max(1, -(-len(values) // max(1, width)))
    return [_mean(values[start : start + size]) for start in range(0, len(values), size)], size


def _ground(value: float, most: float) -> str:
    return f"heat--{_step(value, most, len(GLYPHS)) + 1}" if math.isfinite(value) else "view--warning"


def _step(value: float, most: float, steps: int) -> int:
    share = value / most if math.isfinite(most) and most > 0 else 0.0
    return min(max(int(share * steps), 0), steps - 1)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
