"""The name of a part of the side panel."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.ui.widgets.line_widget import Line, LineWidget


class Heading(LineWidget):
    """One line of bold text."""

    COMPONENT_CLASSES = {"heading--title"}

    DEFAULT_CSS = """
    Heading {
        height: 1;
        & .heading--title { color: $foreground; text-style: bold; }
    }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the one line."""
        return [((self._title, "heading--title"),)]
