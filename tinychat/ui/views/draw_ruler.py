"""The random number that decides, shown against the intervals it can fall into."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from tinychat.protocol import Candidate, Explained
from tinychat.ui.widgets.line_widget import Line, Span, cells

_GROUNDS: Final = ("▓", "░")
"""Neighbouring intervals, which tell themselves apart without colour."""


def drawable(explained: Explained) -> list[Candidate]:
    """Return the candidates that a draw can choose, in the order of their intervals."""
    found = [each for each in explained.candidates if each.interval is not None and each.interval[1] > each.interval[0]]
    return sorted(found, key=lambda each: each.interval or (0.0, 0.0))


def ruler(explained: Explained, width: int) -> Line:
    """Return a line from 0 to 1: a stretch an interval, the one of the token that was said in full blocks."""
    able = drawable(explained)
    spans: list[Span] = []
    owners = [_owner(able, (cell + 0.5) / width) for cell in range(width)]
    for owner, stretch in groupby(owners):
        size = len(list(stretch))
        if owner is None:
            spans.append(("·" * size, "view--quiet"))
        elif able[owner].token_id == explained.chosen:
            spans.append(("█" * size, "view--mark"))
        else:
            spans.append((_GROUNDS[owner % 2] * size, "view--bar"))
    return tuple(spans)


def pointer(draw: float, width: int) -> Line:
    """Return the line below the ruler: `▲ 0.4213` at its place."""
    at = min(int(draw * width), width - 1)
    text = f"{draw:.4f}"
    left: Line = ((" " * at, ""), ("▲", "view--mark"), (f" {text}", "view--text"))
    if cells(left) <= width:
        return left
    return ((f"{text} ".rjust(at), "view--text"), ("▲", "view--mark"))


def _owner(able: list[Candidate], draw: float) -> int | None:
    """Return which candidate a draw chooses, by index."""
    for index, each in enumerate(able):
        low, high = each.interval or (0.0, 0.0)
        if low <= draw < high:
            return index
    return None
