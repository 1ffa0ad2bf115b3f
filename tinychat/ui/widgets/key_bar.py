"""The last line of the screen: the keys that apply now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from textual import events
from textual.binding import ActiveBinding

from tinychat.ui.commands import key_name
from tinychat.ui.widgets.line_widget import Line, LineWidget, Span, cells

if TYPE_CHECKING:
    from textual.screen import Screen

FIRST: Final = (
    "prompt.send",
    "prompt.newline",
    "chat.stop",
    "chat.back",
    "chat.help",
    "glass.views",
    "beside.tokens",
    "app.quit",
)
"""The bindings that are shown before all others, so that they are there on a narrow screen too."""


class KeyBar(LineWidget):
    """`Enter send · Ctrl+J newline · Esc stop · F1 help · Ctrl+Q quit`; a click presses the key.

    One widget, where Textual's footer has one a key: a layout of the screen is cheaper by as many.
    """

    COMPONENT_CLASSES = {"keys--key", "keys--text", "keys--off"}

    DEFAULT_CSS = """
    KeyBar {
        height: 1;
        & .keys--key { color: $foreground; text-style: bold; }
        & .keys--text { color: $quiet; }
        & .keys--off { color: $rule; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._keys: list[tuple[int, int, str]] = []
        """(first cell, cell after the last, key) of what is drawn."""

    def on_mount(self) -> None:
        """Follow the focus, and the state that decides which keys apply."""
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_updated)

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return as many keys as fit, the most needed first."""
        line: list[Span] = [(" ", "")]
        self._keys = []
        for active in self._shown():
            binding = active.binding
            name = binding.key_display or key_name(binding.key)
            gap: Span = (" · " if self._keys else "", "keys--off")
            style = ("keys--key", "keys--text") if active.enabled else ("keys--off", "keys--off")
            part: Line = ((name, style[0]), (f" {binding.description}", style[1]))
            if cells((*line, gap, *part)) > width - 1:
                break
            line += [gap, *part]
            end = cells(tuple(line))
            self._keys.append((end - cells(part), end, binding.key))
        return [tuple(line)]

    def on_click(self, event: events.Click) -> None:
        """Press the key that was clicked."""
        for start, end, key in self._keys:
            if start <= event.x < end:
                self.app.simulate_key(key)

    def _shown(self) -> list[ActiveBinding]:
        """The bindings to show, once an action, in order of need."""
        by_action: dict[str, ActiveBinding] = {}
        for active in self.screen.active_bindings.values():
            if active.binding.show and active.binding.description:
                by_action.setdefault(active.binding.action, active)
        rank = {binding_id: place for place, binding_id in enumerate(FIRST)}
        return sorted(by_action.values(), key=lambda active: rank.get(active.binding.id or "", len(FIRST)))

    def _bindings_updated(self, _screen: Screen[object]) -> None:
        self.update_lines()
