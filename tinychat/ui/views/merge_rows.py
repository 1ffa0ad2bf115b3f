"""A split as it is merged: the symbols with the pair that is next, its rank among the others, and a row a merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len

from tinychat.protocol import Merge, Split, Symbol
from tinychat.ui import figures
from tinychat.ui.split_flow import label
from tinychat.ui.views.view import column, sentence
from tinychat.ui.widgets.line_widget import Line, Span, cut

_SYMBOL: Final = 24
"""Cells of a symbol at most."""
_STEP, _RANK, _SCORE = 5, 9, 10
_LISTED: Final = 1_024
"""Ids listed at most; a pasted book without a space is a single split."""


def state(split: Split, count: int, width: int) -> list[Line]:
    """Return two lines: the symbols after `count` merges with the ranks of the pairs below, at the end those with the
    ids below."""
    if count < len(split.merges):
        return _pairs(split.after(count), split.merges[count], width)
    return _tokens(split.tokens, width)


def verdict(split: Split, count: int) -> str:
    """Say which merge is next, and why it is."""
    if count >= len(split.merges):
        total = figures.tokens(len(split.tokens))
        return f"{total}: no two neighbours are a pair that was learned." if split.kind == "merged" else f"{total}."
    merge = split.merges[count]
    left, right = (name(symbol) for symbol in split.after(count)[merge.at : merge.at + 2])
    ranks = [rank for rank in merge.ranks if rank is not None]
    by_score = "" if merge.score is None else f" by score {merge.score:g}"
    best = "the only pair" if len(ranks) == 1 else f"the lowest of {figures.count(len(ranks))} pairs"
    if (alike := ranks.count(merge.rank)) > 1:
        best += f", the leftmost of {figures.count(alike)} alike"
    others = [rank for rank in ranks if rank > merge.rank]
    runner_up = f", before {figures.count(min(others))}" if others else ""
    return f"{left} + {right} → id {merge.token_id}: rank {figures.count(merge.rank)}{by_score}, {best}{runner_up}"


def heading(width: int, *, by_score: bool) -> Line:
    """Return the names of the columns."""
    score = column("score", _SCORE, right=True) if by_score else ""
    ranks = f"  {column('merge', _STEP, right=True)}{column('rank', _RANK, right=True)}{score}"
    return ((cut(f"{ranks}  symbols, + between the next pair", width), "view--quiet"),)


def step(split: Split, count: int, width: int, *, here: bool) -> Line:
    """Return the row of the merge that comes after `count` others."""
    merge = split.merges[count]
    quiet = "view--title" if here else "view--quiet"
    score = "" if merge.score is None else column(f"{merge.score:g}", _SCORE, right=True)
    numbers = f"{'›' if here else ' '} {count + 1:>{_STEP}}{figures.count(merge.rank):>{_RANK}}{score}  "
    spans: list[Span] = [(numbers, quiet)]
    names = [name(symbol) for symbol in split.after(count)]
    shown = _window([cell_len(each) + 1 for each in names], merge.at, width - cell_len(numbers) - 4)
    if shown.start:
        spans.append(("… ", "view--quiet"))
    for index in shown:
        paired = index in (merge.at, merge.at + 1)
        spans.append((names[index], "view--mark" if paired else "view--text"))
        spans.append(("+" if index == merge.at else " ", "view--bar"))
    if shown.stop < len(names):
        spans.append(("…", "view--quiet"))
    return tuple(spans)


def ids(split: Split, width: int, *, here: bool) -> list[Line]:
    """Return the rows of the ids that the split ends as."""
    listed = " ".join(str(token.token_id) for token in split.tokens[:_LISTED]) or "none"
    if len(split.tokens) > _LISTED:
        listed += f" and {figures.count(len(split.tokens) - _LISTED)} more, which are not listed"
    indent = 2 + _STEP + 1
    lines = sentence(listed, max(1, width - indent), "view--text")
    first = f"{'›' if here else ' '} {'ids':>{_STEP}} "
    return [
        ((first if number == 0 else " " * indent, "view--title" if here else "view--quiet"), *line)
        for number, line in enumerate(lines)
    ]


def name(symbol: Symbol) -> str:
    """Return a symbol as it is drawn: its characters, or its bytes in hexadecimal where it is a byte of one."""
    return f"<{symbol.data.hex(' ').upper()}>" if symbol.fallback == "byte" else label(symbol.data, _SYMBOL)


def _pairs(symbols: Sequence[Symbol], merge: Merge, width: int) -> list[Line]:
    """Return the symbols around the next merge, and below each gap the rank of the pair to both sides of it."""
    names = [name(symbol) for symbol in symbols]
    ranks = [" – " if rank is None else f" {figures.count(rank)} " for rank in merge.ranks]
    gaps = [*map(cell_len, ranks), 0]
    shown = _window([cell_len(each) + gap for each, gap in zip(names, gaps, strict=True)], merge.at, width - 4)
    mark = "… " if shown.start else ""
    upper: list[Span] = [(mark, "view--quiet")]
    lower: list[Span] = [(" " * len(mark), "")]
    for index in shown:
        style = "view--row" if index in (merge.at, merge.at + 1) else _style(symbols[index], index)
        upper.append((names[index], style))
        lower.append((" " * cell_len(names[index]), ""))
        if index + 1 < shown.stop:
            here = index == merge.at
            upper.append((("━" if here else " ") * gaps[index], "view--mark"))
            lower.append((ranks[index], "view--mark" if here else "view--quiet"))
    if shown.stop < len(names):
        upper.append((" …", "view--quiet"))
    return [tuple(upper), tuple(lower)]


def _tokens(tokens: Sequence[Symbol], width: int) -> list[Line]:
    """Return the tokens, and below each its id."""
    upper: list[Span] = []
    lower: list[Span] = []
    room = width - 2
    for index, token in enumerate(tokens):
        size = max(cell_len(name(token)), len(str(token.token_id)))
        if size + 1 > room and upper:
            upper.append(("…", "view--quiet"))
            break
        upper += [(column(name(token), size), _style(token, index)), (" ", "")]
        lower.append((column(str(token.token_id), size + 1), "view--quiet"))
        room -= size + 1
    return [tuple(upper) or (("no token", "view--quiet"),), tuple(lower)]


def _style(symbol: Symbol, index: int) -> str:
    if symbol.fallback:
        return "bpe--fallback"
    return "bpe--odd" if index % 2 else "bpe--even"


def _window(widths: Sequence[int], at: int, room: int) -> range:
    """Return which stretch of things so wide has room, with `at` and its neighbour near the middle."""
    low, high = at, min(at + 2, len(widths))
    used = sum(widths[low:high])
    while True:
        before = widths[low - 1] if low > 0 else None
        after = widths[high] if high < len(widths) else None
        if after is not None and used + after <= room and (before is None or high - at <= at - low + 2):
            used, high = used + after, high + 1
        elif before is not None and used + before <= room:
            used, low = used + before, low - 1
        elif after is not None and used + after <= room:
            used, high = used + after, high + 1
        else:
            return range(low, high)
