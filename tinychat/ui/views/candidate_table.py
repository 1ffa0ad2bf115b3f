"""The candidates for a token, a row each: how the sampler's chain made of the model's probability the one drawn by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tinychat.pictures import visible_bytes
from tinychat.protocol import Candidate, Explained
from tinychat.ui.views.view import column
from tinychat.ui.widgets.gauge import share_bar
from tinychat.ui.widgets.line_widget import Line, Span

_SHORT: Final = {"repetition": "repet.", "frequency and presence": "fr+pr", "temperature": "temp"}
"""Names of stages that are longer than their column."""
_PIECE, _ID, _NUMBER, _BAR = 12, 7, 7, 7
_INTERVAL = 13
_FIXED: Final = 2 + _PIECE + _ID + _NUMBER + _BAR
"""Cells of what is always there."""


def shown_stages(stages: Sequence[str], width: int, page: int) -> list[int]:
    """Return the indices of the stages that there is room for.

    The last stage says what was drawn by, so it is always there; before it as many as fit, the latest first, or an
    earlier page of them.
    """
    if not stages:
        return []
    last = len(stages) - 1
    room = max(0, (width - _FIXED) // _NUMBER - 1)
    end = max(0, last - page * max(1, room)) if room else 0
    return [*range(max(0, end - room), end), last]


def pages(stages: Sequence[str], width: int) -> int:
    """Return how many pages the stages take."""
    room = max(0, (width - _FIXED) // _NUMBER - 1)
    return 1 if not room or len(stages) <= 1 else -(-(len(stages) - 1) // room)


def heading(explained: Explained, width: int, page: int) -> Line:
    """Return the names of the columns."""
    shown = shown_stages(explained.stages, width, page)
    stages = [explained.stages[index] for index in shown]
    names = [column(_SHORT.get(stage, stage), _NUMBER, right=True) for stage in stages]
    fixed = f"  {column('piece', _PIECE)}{column('id', _ID, right=True)}{column('model', _NUMBER, right=True)}"
    interval = column("drawn by", _INTERVAL + 1, right=True) if _has_intervals(shown, width) else ""
    return ((f"{fixed}{' ' * _BAR}{''.join(names)}{interval}", "view--quiet"),)


def row(explained: Explained, candidate: Candidate, width: int, page: int, *, here: bool) -> Line:
    """Return one candidate."""
    shown = shown_stages(explained.stages, width, page)
    said = candidate.token_id == explained.chosen
    removed = _removed_at(explained, candidate)
    mark = "›" if here else " "
    style = "view--row" if here else "view--mark" if said else "view--lost" if candidate.removed_by else "view--text"
    rest = "view--row" if here else "view--quiet" if candidate.removed_by else "view--text"
    first = candidate.probabilities[0] if candidate.probabilities else 0.0
    spans: list[Span] = [
        (f"{mark}{'●' if said else ' '}", "view--mark"),
        (column(visible_bytes(candidate.piece) or "no bytes", _PIECE), style),
        (f"{candidate.token_id:>{_ID}}{_number(first)}", rest),
        (f" {share_bar(first, _BAR - 1)}", "view--bar"),
    ]
    for index in shown:
        spans.append(_stage(candidate, index, removed, rest))
    if _has_intervals(shown, width) and candidate.interval is not None:
        low, high = candidate.interval
        spans.append((column(f"{low:.4f}-{high:.4f}", _INTERVAL + 1, right=True), rest))
    return tuple(spans)


def _stage(candidate: Candidate, index: int, removed: int | None, style: str) -> Span:
    """Return what a stage made of a candidate: a number, a cross where it fell, nothing after that."""
    if removed is not None and index >= removed:
        return (("✗" if index == removed else "").rjust(_NUMBER), "view--warning")
    values = candidate.probabilities
    return (_number(values[index + 1]) if index + 1 < len(values) else " " * _NUMBER, style)


def _removed_at(explained: Explained, candidate: Candidate) -> int | None:
    if candidate.removed_by in explained.stages:
        return explained.stages.index(candidate.removed_by)
    return len(explained.stages) if candidate.removed_by else None


def _number(probability: float) -> str:
    """Return a probability in the cells of a column, right-aligned."""
    if 0 < probability < 0.0005:
        return f"{probability:.0e}".replace("e-0", "e-").rjust(_NUMBER)
    return f"{probability:.3f}".rjust(_NUMBER)


def _has_intervals(shown: Sequence[int], width: int) -> bool:
    return width >= _FIXED + len(shown) * _NUMBER + _INTERVAL + 1
