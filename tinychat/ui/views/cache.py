"""The view of the cache: a map of its positions, the blocks they lie in, and what happened there so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual import events
from textual.binding import Binding

from tinychat.pictures import visible_bytes
from tinychat.protocol import CachedRun, CacheMapped
from tinychat.ui import figures
from tinychat.ui.cache_layout import CacheLayout, glyph_of, letters
from tinychat.ui.glass import Glass
from tinychat.ui.views.view import NOTHING, View, sentence
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
_ROOM: Final = 4
"""Lines of the map that the totals below it leave free."""


class CacheView(View):
    """Two lines a row of the map; the position in focus is spelt out above, the totals stand below."""

    NAME = "cache"

    HELP = """
**The KV cache, up close.** Keys and values of every token so far, a cell a position. The letter tells where a token
came from, a small one that it was here before this turn, a capital that it was computed with the prompt; `●` was drawn,
`◆` guessed and then drawn. Positions lie in blocks of 32, `#` is a block's place in the pool. Versions of a reply that
begin alike share their first blocks, `║`, and are kept as A, B, ...; whoever writes into a shared block copies it. This
is PagedAttention (Kwon et al. 2023, arXiv:2309.06180). Layers with a window let go of blocks behind it, `×`. The share
of prompt tokens that were reused is the hit rate. `z` goes between a cell a position and the whole: beside a row, `1:4`
says that a cell is four positions and shows the first of them. `n` shows the blocks of layers with another window.
"""

    BINDINGS = [
        Binding("left", "step(-1)", "position", tooltip="The position before", key_display="←→", id="cache.step"),
        Binding("right", "step(1)", "next position", show=False, tooltip="The position after"),
        Binding("ctrl+left", "step(-32)", "a block back", show=False, tooltip="A block back"),
        Binding("ctrl+right", "step(32)", "a block on", show=False, tooltip="A block on"),
        Binding("home", "step(-1000000000)", "first position", show=False, tooltip="The first position"),
        Binding("end", "step(1000000000)", "last position", show=False, tooltip="The last position, and follow it"),
        Binding("z", "zoom", "zoom", tooltip="A cell a position, or the whole map", id="cache.zoom"),
        Binding("n", "other_layers", "layers", show=False, tooltip="Blocks of the layers with another window"),
    ]

    COMPONENT_CLASSES = {
        "map--template", "map--system", "map--person", "map--model", "map--unknown", "map--border", "map--shared",
    }  # fmt: skip

    DEFAULT_CSS = """
    CacheView {
        & .map--template { color: $quiet; background: $panel; }
        & .map--system { color: $foreground; background: $panel; text-style: bold; }
        & .map--person { color: $chip-text; background: $chip-odd; }
        & .map--model { color: $chip-text; background: $chip-even; }
        & .map--unknown { color: $quiet; }
        & .map--border { color: $rule; }
        & .map--shared { color: $warning; }
    }
    """

    def __init__(self, glass: Glass) -> None:
        super().__init__(glass)
        self._whole = True
        self._table = 0
        self._map: CacheLayout | None = None
        self._mapped: CacheMapped | None = None
        """What is drawn."""
        self._key: tuple[object, ...] = ()
        self._composed: Sequence[Line] = ()

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Compose anew only what is another map, or looked at otherwise: a reply that runs brings a map now and then,
        and asks for all that is drawn much more often."""
        glass = self.glass
        key = (width, self.size.height, glass.turn_id is None, glass.map_at, self._whole, self._table)
        if glass.mapped is not self._mapped or key != self._key:
            self._mapped, self._key = glass.mapped, key
            self._composed = super().compose_lines(width)
        return self._composed

    def head(self, width: int) -> Sequence[Line]:
        """Return the counts, the position in focus, and the legend."""
        mapped = self._mapped
        if self.glass.turn_id is None:
            held = mapped.length if mapped is not None else 0
            before = f"The caches still hold {figures.tokens(held)} of the chat before." if held else ""
            return [*sentence(NOTHING, width), *(sentence(before, width) if before else ())]
        if mapped is None:
            return sentence("Asking the engine ...", width)
        if mapped.problem:
            return sentence(mapped.problem, width, "view--warning")
        if not mapped.length:
            return sentence("The caches are empty.", width)
        return [
            *sentence(_title(mapped, self._table_at), width, "view--title")[:2],
            *(((cut(text, width), "view--text"),) for text in self._focused(mapped)),
            *_legend(width, wide=self.size.height >= 16),
        ]

    def body(self, width: int) -> Sequence[Line]:
        """Return the map; lines out of view are only counted."""
        mapped = self._mapped
        if self.glass.turn_id is None or mapped is None or not mapped.length:
            self._map = None
            return ()
        layout, focus = CacheLayout(mapped, self._table_at, width, self._space, whole=self._whole), self.glass.map_at
        self._map = layout
        here = layout.row_of(focus)
        self.row = 2 * here + 1
        self._top = min(self._top, 2 * here)
        near = self._space // 2 + 1
        lines: list[Line] = []
        for row in range(layout.rows):
            lines += layout.lines(row, focus) if abs(row - here) <= near else ((), ())
        return lines

    def foot(self, width: int) -> Sequence[Line]:
        """Return the totals, as far as they leave the map some room."""
        mapped = self._mapped
        if self.glass.turn_id is None or mapped is None or not mapped.length:
            return ()
        lines: list[Line] = []
        for text in (_prompts(mapped), _kept(mapped), _bytes(mapped), _events(mapped)):
            lines += sentence(text, width)
        return lines[: max(0, self.size.height - self.head_lines - _ROOM)]

    def action_step(self, positions: int) -> None:
        """Look at another position; the last one is followed."""
        if (mapped := self._mapped) is not None and mapped.length:
            at = self.glass.map_at + positions
            self.glass.map_focus = max(0, at) if at < mapped.length - 1 else None
            self.update_lines()
            self.glass.ask()

    def action_move(self, rows: int) -> None:
        """Look at a position some rows further."""
        if self._map is not None:
            self.action_step(rows * self._map.positions)

    def action_page(self, pages: int) -> None:
        """Go a page further."""
        self.action_move(pages * max(1, self._space // 2 - 1))

    def action_zoom(self) -> None:
        """Go between a cell a position and the whole map."""
        self._whole = not self._whole
        self.update_lines()

    def action_other_layers(self) -> None:
        """Show the blocks of the layers that have another window."""
        self._table += 1
        self.update_lines()

    def on_click(self, event: events.Click) -> None:
        """Look at the position that was clicked."""
        if self._map is not None and (line := self.row_at(event.y)) is not None:
            position = self._map.position_at(line // 2, event.x)
            if position is not None:
                self.action_step(position - self.glass.map_at)

    @property
    def _table_at(self) -> int:
        mapped = self._mapped
        return self._table % max(1, len(mapped.tables)) if mapped is not None else 0

    def _focused(self, mapped: CacheMapped) -> tuple[str, str]:
        """Say what is at the position in focus, and where that lies."""
        at = self.glass.map_at
        run = next(run for run in mapped.runs if at < run.end)
        index = at - mapped.first_piece
        piece = mapped.pieces[index] if 0 <= index < len(mapped.pieces) else None
        name = "…" if piece is None else visible_bytes(piece.data) or "no bytes"
        kind = "" if piece is None else f" · id {piece.token_id}{', control token' if piece.special else ''}"
        message = f", message {run.message}" if run.message else ""
        what = f"{figures.count(at)} {glyph_of(run)} {name}{kind} · {_source(run)}{message} · {_ARRIVALS[run.arrival]}"
        table = mapped.tables[self._table_at]
        place = at // mapped.block - table.first
        if place < 0:
            return what, f"let go here: it lies behind the window of {figures.count(table.window or 0)} tokens"
        block = table.blocks[place]
        start = (place + table.first) * mapped.block
        shared = f"shared with {', '.join(letters(block.sharers))}" if block.sharers else "not shared"
        return what, f"block #{block.number}, positions {start} to {start + mapped.block - 1}, {shared}"


def _source(run: CachedRun) -> str:
    if run.origin == "person":
        return "system" if run.role == "system" else "you"
    return {"template": "template", "model": "reply", "unknown": "origin no longer known"}[run.origin]


def _title(mapped: CacheMapped, number: int) -> str:
    table = mapped.tables[number]
    shared = sum(block.references > 1 for block in table.blocks)
    what = f"{figures.count(mapped.length)} of {figures.tokens(mapped.capacity)}"
    blocks = f"{len(table.blocks)} blocks, {shared} shared, {table.free} free"
    if len(mapped.tables) == 1 and table.window is None:
        return f"{what} · {blocks}"
    window = f"window {figures.count(table.window)}" if table.window is not None else "no window"
    gone = f", {figures.count(table.first * mapped.block)} let go" if table.first else ""
    return f"{what} · {table.layers} layers, {window}: {blocks}{gone}"


def _legend(width: int, *, wide: bool) -> list[Line]:
    """Return what the letters mean, on one line, or on as many as it takes."""
    line: list[Span] = []
    for letter, style, name in _LEGEND:
        line += [(f" {letter} ", f"map--{style}"), (f" {name}  ", "view--quiet")]
    if not wide:
        used = sum(len(text) for text, _ in line)
        short = "small reused · ● drawn ◆ guessed ║ shared"
        return [(*line, (cut(short, max(0, width - used)), "view--quiet"))]
    return [tuple(line), *sentence(_KEY, width)]


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
