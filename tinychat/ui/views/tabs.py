"""The list of the views, with the key of each."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message

from tinychat.ui.glass import VIEWS, Glass
from tinychat.ui.widgets.line_widget import Line, LineWidget, Span, cells


class ViewTabs(LineWidget):
    """`t tokens  w why  l layers  g lens  p prompt  m time  b bpe      Esc closes`; a click opens a view."""

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
        """Return the one line."""
        line: list[Span] = []
        self._places = []
        for name, key in VIEWS.items():
            start = cells(tuple(line))
            if name == self._glass.view:
                line.append((f" {key} {name} ", "tabs--open"))
            else:
                line += [(f" {key}", "tabs--key"), (f" {name} ", "tabs--name")]
            self._places.append((start, cells(tuple(line)), name))
        space = width - cells(tuple(line))
        closings: list[Line] = [
            (("─ ", "tabs--rule"), (text, "tabs--name"), (" ─", "tabs--rule")) for text in ("Esc closes", "Esc")
        ]
        closing = next((each for each in closings if cells(each) <= space), ())
        return [(*line, ("─" * max(0, space - cells(closing)), "tabs--rule"), *closing)]

    def on_click(self, event: events.Click) -> None:
        """Choose the view that was clicked."""
        for start, end, name in self._places:
            if start <= event.x < end:
                self.post_message(self.Chosen(name))
