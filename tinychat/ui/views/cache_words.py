"""What the view of the cache says in words, from what the engine told."""

from __future__ import annotations

from typing import Final

from tinychat.pictures import visible_bytes
from tinychat.protocol import CachedRun, CacheMapped
from tinychat.ui import figures
from tinychat.ui.cache_layout import glyph_of, letters
from tinychat.ui.views.view import sentence
from tinychat.ui.widgets.line_widget import Line, Span, cut

_ARRIVALS: Final = {
    "reused": "reused from before",
    "computed": "computed with the prompt",
    "drawn": "computed after it was drawn",
    "accepted": "guessed, and then drawn",
    "guessed": "a guess that isn't judged yet",
}
_LEGEND: Final = (
    ("t", "template", "template"), ("s", "system", "system"), ("y", "person", "you"), ("r", "model", "reply"),
)  # fmt: skip
"""(letter, style, name)."""
_KEY: Final = "small reused · CAPITAL computed · ● drawn · ◆ guessed right · ? guess · × let go · ║ shared block"
_SHORT_KEY: Final = " small reused ● drawn ◆ guessed ║ shared"


def title(mapped: CacheMapped, number: int) -> str:
    """Say how much there is, and in how many blocks of table `number`."""
    table = mapped.tables[number]
    shared = sum(block.references > 1 for block in table.blocks)
    what = f"{figures.count(mapped.length)} of {figures.tokens(mapped.capacity)}"
    blocks = f"{len(table.blocks)} blocks, {shared} shared, {table.free} free"
    if len(mapped.tables) == 1 and table.window is None:
        return f"{what} · {blocks}"
    window = f"window {figures.count(table.window)}" if table.window is not None else "no window"
    gone = f", {figures.count(table.first * mapped.block)} let go" if table.first else ""
    return f"{what} · {table.layers} layers, {window}: {blocks}{gone}"


def focused(mapped: CacheMapped, at: int, number: int) -> tuple[str, str]:
    """Say what is at position `at`, and where that lies in the blocks of table `number`."""
    run = next(run for run in mapped.runs if at < run.end)
    index = at - mapped.first_piece
    piece = mapped.pieces[index] if 0 <= index < len(mapped.pieces) else None
    name = "…" if piece is None else visible_bytes(piece.data) or "no bytes"
    kind = "" if piece is None else f" · id {piece.token_id}{', control token' if piece.special else ''}"
    message = f", message {run.message}" if run.message else ""
    what = f"{figures.count(at)} {glyph_of(run)} {name}{kind} · {_source(run)}{message} · {_ARRIVALS[run.arrival]}"
    table = mapped.tables[number]
    place = at // mapped.block - table.first
    if place < 0:
        return what, f"let go here: it lies behind the window of {figures.count(table.window or 0)} tokens"
    block = table.blocks[place]
    start = (place + table.first) * mapped.block
    shared = f"shared with {', '.join(letters(block.sharers))}" if block.sharers else "not shared"
    return what, f"block #{block.number}, positions {start} to {start + mapped.block - 1}, {shared}"


def legend(width: int, *, wide: bool) -> list[Line]:
    """Return what the letters mean, on one line, or on as many as it takes."""
    pad, gap = (" ", "  ") if wide else ("", " ")
    line: list[Span] = []
    for letter, style, name in _LEGEND:
        line += [(f"{pad}{letter}{pad}", f"map--{style}"), (f" {name}{gap}", "view--quiet")]
    if wide:
        return [tuple(line), *sentence(_KEY, width)]
    used = sum(len(text) for text, _ in line)
    return [(*line, (cut(_SHORT_KEY, max(0, width - used)), "view--quiet"))]


def summary(mapped: CacheMapped) -> tuple[str, ...]:
    """Say what was reused, what is kept beside it, what a token takes, and what happened since the model was loaded."""
    return _prompts(mapped), _kept(mapped), _bytes(mapped), _events(mapped)


def _source(run: CachedRun) -> str:
    if run.origin == "person":
        return "system" if run.role == "system" else "you"
    return {"template": "template", "model": "reply", "unknown": "origin no longer known"}[run.origin]


def _prompts(mapped: CacheMapped) -> str:
    totals = mapped.totals
    seen = totals.reused + totals.computed
    share = figures.share(totals.reused, seen)
    return (
        f"Since loading: {figures.count(seen)} prompt tokens, {figures.count(totals.reused)} reused ({share}), "
        f"{figures.count(totals.computed)} computed."
    )


def _kept(mapped: CacheMapped) -> str:
    if not mapped.kept:
        return "No other sequences are kept."
    parts = (
        f"{letters((number,))} {figures.tokens(kept.length)}, first {figures.count(kept.common)} as here"
        for number, kept in enumerate(mapped.kept)
    )
    return f"Kept beside it: {'; '.join(parts)}."


def _bytes(mapped: CacheMapped) -> str:
    least, most = min(mapped.token_bytes, default=0), max(mapped.token_bytes, default=0)
    layer = figures.count(least) if least == most else f"{figures.count(least)} to {figures.count(most)}"
    token = sum(mapped.token_bytes)
    layers = len(mapped.token_bytes)
    return f"A token takes {layer} bytes a layer, {figures.memory(token)} in {layers} layers, {mapped.dtype}."


def _events(mapped: CacheMapped) -> str:
    totals, count = mapped.totals, figures.count
    parts = [
        f"trims {count(totals.trims)} ({figures.tokens(totals.trimmed)})",
        f"put aside {count(totals.forks)}",
        f"taken up again {count(totals.returns)}",
        f"blocks copied {count(totals.copies)}",
        f"blocks lacking {count(totals.failures)}",
        f"guesses refused {count(totals.refused)}",
    ]
    if totals.recomputed:
        parts.append(f"computed again for other angles {count(totals.recomputed)}")
    return f"{', '.join(parts)}.".capitalize()
