"""Where a person types."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import TextArea

from tinychat.ui.widgets.fold_legend import FoldLegend
from tinychat.ui.widgets.line_widget import Line, LineWidget
from tinychat.ui.widgets.prompt_editor import PromptEditor


class Marker(LineWidget):
    """The `>` before the first line."""

    DEFAULT_CSS = """
    Marker { width: 3; height: 1; color: $person; text-style: bold; }
    """

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the one line."""
        return [((" > ", ""),)]


class Prompt(Vertical):
    """Marker, text area and the legend of folded pastes."""

    DEFAULT_CSS = """
    Prompt {
        height: auto;
        & > Horizontal { height: auto; }
        & PromptEditor { max-height: 8; width: 1fr; }
    }
    """

    class Edited(Message):
        """The draft changed, or the cursor moved."""

        def __init__(self, draft_changed: bool) -> None:
            super().__init__()
            self.draft_changed = draft_changed

    def compose(self) -> ComposeResult:
        """Lay out."""
        with Horizontal():
            yield Marker()
            yield PromptEditor(id="draft")
        yield FoldLegend()

    @property
    def editor(self) -> PromptEditor:
        """The text area."""
        return self.query_one(PromptEditor)

    @on(TextArea.Changed)
    def _changed(self, event: TextArea.Changed) -> None:
        event.stop()
        self.query_one(FoldLegend).show(self.editor.folds)
        self.post_message(self.Edited(draft_changed=True))

    @on(TextArea.SelectionChanged)
    def _moved(self, event: TextArea.SelectionChanged) -> None:
        event.stop()
        self.post_message(self.Edited(draft_changed=False))
