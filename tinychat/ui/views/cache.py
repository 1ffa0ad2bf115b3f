"""The view of the cache: a map of its positions, the blocks they lie in, and what happened there so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual import events
from textual.binding import Binding

from tinychat.protocol import CacheMapped
from tinychat.ui import figures
from tinychat.ui.cache_layout import CacheLayout
from tinychat.ui.glass import Glass
from tinychat.ui.views import cache_words
from tinychat.ui.views.view import NOTHING, View, sentence
from tinychat.ui.widgets.line_widget import Line, cut

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
        focused = cache_words.focused(mapped, self.glass.map_at, self._table_at)
        return [
            *sentence(cache_words.title(mapped, self._table_at), width, "view--title")[:2],
            *(((cut(text, width), "view--text"),) for text in focused),
            *cache_words.legend(width, wide=self.size.height >= 16),
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
        for text in cache_words.summary(mapped):
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
