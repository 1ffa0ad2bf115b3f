"""The list of the views, with the key of each."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message

from tinychat.ui.glass import VIEWS, Glass
from tinychat.ui.widgets.line_widget import Line, LineWidget, Span, cells


class ViewTabs(LineWidget):
    """A line of the views, each with its key, the open one marked; a click opens a view."""

    COMPONENT_CLASSES = {"tabs--key", "tabs--name", "tabs--open", "tabs--rule"}

    DEFAULT_CSS = """
    ViewTabs {
        height: 1;
        & .tabs--key { color: $foreground; text-style: bold; }
        & .tabs--name { color: $quiet; }
        & .tabs--open { color: $model; text-style: bold reverse; }
        & .tabs--rule { color: $rule; }
    }
    """

    class Chosen(Message):
        """A person wants to see a view."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, glass: Glass) -> None:
        super().__init__()
        self._glass = glass
        self._places: list[tuple[int, int, str]] = []
        """(first cell, cell after the last, view)."""

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the one line, in the roomiest form that the width has place for."""
        closing: Line = (("─ ", "tabs--rule"), ("Esc closes", "tabs--name"), (" ─", "tabs--rule"))
        for named, gap, end in ((True, " ", closing), (True, "", closing), (True, "", ()), (False, "", closing)):
            line = self._tabs(gap, named=named)
            if cells((*line, *end)) <= width:
                break
        space = width - cells((*line, *end))
        if space < 0:
            end, space = (), max(0, width - cells(tuple(line)))
        apart = " " if space and not gap else ""
        return [(*line, (apart + "─" * (space - len(apart)), "tabs--rule"), *end)]

    def _tabs(self, gap: str, *, named: bool) -> list[Span]:
        """Return the tabs: the open one in full, of the others the key, and if `named` the name and a `gap`."""
        line: list[Span] = []
        self._places = []
        for name, key in VIEWS.items():
            start = cells(tuple(line))
            if name == self._glass.view:
                line.append((f" {key} {name} ", "tabs--open"))
            else:
                line += [(f" {key}", "tabs--key"), (f" {name}{gap}" if named else "", "tabs--name")]
            self._places.append((start, cells(tuple(line)), name))
        return line

    def on_click(self, event: events.Click) -> None:
        """Choose the view that was clicked."""
        for start, end, name in self._places:
            if start <= event.x < end:
                self.post_message(self.Chosen(name))
