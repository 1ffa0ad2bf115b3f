"""What the folded pastes in the prompt are."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.ui import figures
from tinychat.ui.stand_ins import FOLD_PICTURE
from tinychat.ui.widgets.line_widget import Line, LineWidget


class FoldLegend(LineWidget):
    """Says what the `▤` in the draft stand for; not there while there are none."""

    COMPONENT_CLASSES = {"fold--text"}

    DEFAULT_CSS = """
    FoldLegend {
        height: auto;
        & .fold--text { color: $quiet; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._folds: list[str] = []

    def show(self, folds: list[str]) -> None:
        """Show the folded texts' sizes."""
        if folds != self._folds:
            self._folds = folds
            self.update_lines()

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return one line, or none."""
        if not self._folds:
            return []
        sizes = ", ".join(f"{FOLD_PICTURE} {figures.count(len(text))} characters" for text in self._folds)
        return [((f"   {sizes} pasted; sent whole", "fold--text"),)]
