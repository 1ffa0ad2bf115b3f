"""Says that text has come below what is in view."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message

from tinychat.ui.widgets.line_widget import Line, LineWidget, cells


class NewText(LineWidget):
    """`↓ new text below · Ctrl+End`; a click goes there."""

    COMPONENT_CLASSES = {"new-text--text"}

    DEFAULT_CSS = """
    NewText {
        height: 1;
        width: 1fr;
        & .new-text--text { color: $chip-cursor-text; background: $chip-cursor; text-style: bold; }
    }
    """

    class Clicked(Message):
        """A person wants to see it."""

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the one line, in the middle."""
        label: Line = ((" ↓ new text below · Ctrl+End ", "new-text--text"),)
        return [((" " * max(0, (width - cells(label)) // 2), ""), *label)]

    def on_click(self) -> None:
        """Ask to go there."""
        self.post_message(self.Clicked())
