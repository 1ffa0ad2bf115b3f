"""Where the sampler's values came from."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.ui.widgets.line_widget import Line, LineWidget
from tinychat.ui.wrapping import WrappedText


class Sources(LineWidget):
    """Says where the values come from: of the setting in focus, or of all of them."""

    COMPONENT_CLASSES = {"sources--text"}

    DEFAULT_CSS = """
    Sources {
        height: auto;
        min-height: 2;
        & .sources--text { color: $quiet; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._text = ""

    def show(self, text: str) -> None:
        """Show a sentence."""
        self._text = text
        self.update_lines()

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the sentence, wrapped; always two lines at least, so that the panel below doesn't jump."""
        lines = WrappedText(max(1, width - 2), self._text).lines
        return [((f"  {line}", "sources--text"),) for line in (*lines, "", "")[: max(2, len(lines))]]
