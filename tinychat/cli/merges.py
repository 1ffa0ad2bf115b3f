"""How `tinychat tokenize --explain` tells of the merges: a table for people, an object for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.cells import cell_len

from tinychat.cli.console import Results
from tinychat.pictures import visible_bytes
from tinychat.protocol import BpeWalk, Split, Symbol
from tinychat.ui.split_remarks import split_remarks

_AROUND: Final = 8
"""Symbols shown on either side of a merge."""
_RULES: Final = {
    False: "Of all neighbours that a merge joins, the pair with the lowest rank goes first; of equals, the leftmost.",
    True: "Of all neighbours that make a token, those with the best score go first: rank 0 is the best of all merges.",
}

Row = tuple[str, str, str, str]
"""Rank, score, pair, symbols."""


def described_walk(walk: BpeWalk) -> dict[str, Any]:
    """Return the walk as JSON has it; bytes are in hexadecimal."""
    return {
        "by_score": walk.by_score,
        "normalized": None if walk.normalized is None else walk.normalized.decode("utf-8", "replace"),
        "splits": [_described(split) for split in walk.splits],
        "left_out": walk.left_out,
    }


def _described(split: Split) -> dict[str, Any]:
    return {
        "kind": split.kind,
        "text": split.data.decode("utf-8", "replace"),
        "bytes": split.data.hex(),
        "lost": split.lost.hex(),
        "symbols": [_described_symbol(symbol) for symbol in split.symbols],
        "merges": [_renamed(asdict(merge)) for merge in split.merges],
        "tokens": [_described_symbol(symbol) for symbol in split.tokens],
        "note": split.note,
    }


def _described_symbol(symbol: Symbol) -> dict[str, Any]:
    described = {"piece": symbol.data.decode("utf-8", "replace"), "bytes": symbol.data.hex()}
    return {"id": symbol.token_id, **described, "fallback": symbol.fallback}


def _renamed(merge: dict[str, Any]) -> dict[str, Any]:
    return {"id" if key == "token_id" else key: value for key, value in merge.items()}


def print_walk(results: Results, walk: BpeWalk) -> None:
    """Print what the text is cut into, then each piece with its merges, one a line."""
    if walk.normalized is not None:
        results.line(f"The text becomes: {visible_bytes(walk.normalized)}")
    results.line("|".join(visible_bytes(split.data) for split in walk.splits))
    results.line(f"\n{_RULES[walk.by_score]}")
    for split in walk.splits:
        results.line(f"\n{visible_bytes(split.data)}")
        for remark in split_remarks(split):
            results.line(f"  {remark}")
        _print_rows(results, [*_rows(split, results.styled)], with_score=walk.by_score)
    if walk.left_out:
        results.line(f"\n{walk.left_out:,} more pieces are not explained: the text is too long.")


def _rows(split: Split, styled: bool) -> Iterator[Row]:
    if split.merges:
        yield "rank", "score", "pair", "symbols"
    if len(split.symbols) > 1 and split.kind == "merged":
        yield "", "", "", _drawn(split.symbols, None, styled)
    for count, merge in enumerate(split.merges):
        left, right = split.after(count)[merge.at : merge.at + 2]
        yield (
            f"{merge.rank:,}",
            "" if merge.score is None else f"{merge.score:g}",
            f"{visible_bytes(left.data)} {visible_bytes(right.data)}",
            _drawn(split.after(count + 1), merge.at, styled),
        )
    if split.tokens:
        yield "", "", "ids", " ".join(str(token.token_id) for token in split.tokens)


def _drawn(symbols: Sequence[Symbol], joined: int | None, styled: bool) -> str:
    """Return symbols side by side, those far from the one that was just joined left out."""
    labels = [visible_bytes(symbol.data) for symbol in symbols]
    if joined is not None and styled:
        labels[joined] = f"\x1b[7m{labels[joined]}\x1b[27m"
    low = max(0, min((joined or 0) - _AROUND, len(labels) - 2 * _AROUND - 1))
    high = low + 2 * _AROUND + 1
    return " ".join([*["…"] * (low > 0), *labels[low:high], *["…"] * (high < len(labels))])


def _print_rows(results: Results, rows: Sequence[Row], *, with_score: bool) -> None:
    ranks, scores, pairs = (max((cell_len(row[column]) for row in rows), default=0) for column in range(3))
    for rank, score, pair, symbols in rows:
        value = f"  {score:>{scores}}" if with_score else ""
        results.own(f"  {rank:>{ranks}}{value}  {pair}{' ' * (pairs - cell_len(pair))}  {symbols}\n")
