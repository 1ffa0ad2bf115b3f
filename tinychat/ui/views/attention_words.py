"""What the view of attention says of a row in words and numbers, above the text that it shades."""

from __future__ import annotations

from typing import Final

from tinychat.ui import figures
from tinychat.ui.attention_layout import AttentionLayout
from tinychat.ui.attention_row import AttentionRow
from tinychat.ui.measures import GLYPHS
from tinychat.ui.views.view import column
from tinychat.ui.widgets.gauge import share_bar
from tinychat.ui.widgets.line_widget import Line, Span, cells, cut, spread

_ROOMY: Final = 16
"""Lines from which on each of the largest weights has one."""
_PIECE: Final = 20
"""Cells of a token in the list of them."""
_SHORT: Final = 12
"""Likewise, where all are in a line."""


def what(row: AttentionRow, width: int) -> Line:
    """Say which heads the row is of, and what it amounts to."""
    attended = row.attended
    layer = f"layer {attended.layer} of {attended.layers - 1}"
    if attended.layer is None:
        text = f"maximum over {attended.heads} heads of {attended.layers} layers"
    elif attended.head is None:
        text = f"{layer} · mean of {attended.heads} heads"
    else:
        text = f"{layer} · head {attended.head} of {attended.heads - 1}"
        if attended.kv_heads < attended.heads:
            text += f" · kv head {attended.head * attended.kv_heads // attended.heads}"
    if attended.window is not None:
        text += f" · window {figures.count(attended.window)}"
    total = f"sum {row.sum:.3f}"
    right = f"{total}, no distribution" if row.is_maximum else f"{total} · {row.bits:.2f} bits"
    return spread(((cut(text, width - len(right) - 1), "view--text"),), ((right, "view--quiet"),), width, (" ", ""))


def scale(row: AttentionRow, width: int) -> list[Line]:
    """Say where each level begins, and what is left out."""
    line: list[Span] = []
    for level, bound in enumerate(row.bounds):
        line += [(f" {GLYPHS[level]} {100 * bound:.2g} ", f"heat--{level + 1}"), (" ", "")]
    line.append(("% and more", "view--quiet"))
    if row.left_out is None:
        return [tuple(line)]
    note: Line = ((f"without the first, {figures.chance(row.left_out)}", "view--warning"),)
    if cells((*line, *note)) < width:
        return [spread(tuple(line), note, width, (" ", ""))]
    return [tuple(line), note]


def largest(row: AttentionRow, layout: AttentionLayout, width: int, height: int) -> list[Line]:
    """Return the largest weights: a line each, or where there are few lines, as many as one holds."""
    if height < _ROOMY:
        return [_in_a_line(row, layout, width)]
    lines: list[Line] = []
    digits = len(figures.count(len(row.weights)))
    for place, position in enumerate(row.largest[: max(3, height // 5)], 1):
        weight, piece = row.weights[position], column(layout.label(position), _PIECE)
        start = f"{place} {figures.count(position):>{digits}} {piece} {figures.chance(weight):>9} "
        bar = share_bar(weight / row.most if row.most else 0.0, max(1, width - cells(((start, ""),)) - 1))
        lines.append(((start, "view--text"), (bar, "view--bar")))
    return lines


def _in_a_line(row: AttentionRow, layout: AttentionLayout, width: int) -> Line:
    line: list[Span] = []
    for place, position in enumerate(row.largest, 1):
        piece, weight = cut(layout.label(position), _SHORT), figures.chance(row.weights[position])
        part: Line = ((f"{place} ", "view--quiet"), (f"{piece} ", "view--text"), (f"{weight}  ", "view--bar"))
        if cells((*line, *part)) > width:
            break
        line += part
    return tuple(line)


def number(row: AttentionRow, layout: AttentionLayout, position: int) -> str:
    """Say what a position was given, and by whom most."""
    attended = row.attended
    start = f"{figures.count(position)} {layout.label(position)} · {layout.source(position)}"
    if position < attended.first:
        return f"{start} · behind the window of {figures.count(attended.window or 0)}"
    if position == 0 and row.left_out is not None:
        return f"{start} · left out: {figures.chance(row.left_out)}"
    given = f"{start} · {figures.chance(row.weights[position])}"
    if not attended.largest:
        return given
    layer, head = attended.largest[position]
    return f"{given} · most by layer {layer}, head {head}"
