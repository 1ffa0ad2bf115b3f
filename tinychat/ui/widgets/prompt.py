"""Where a person types."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import TextArea

from tinychat.ui import figures
from tinychat.ui.stand_ins import FOLD_PICTURE
from tinychat.ui.widgets.editor import Editor
from tinychat.ui.widgets.line_widget import Line, LineWidget


class PromptEditor(Editor):
    """The text area of the prompt: Enter sends."""

    HELP = """
**The prompt.** `enter` sends, `ctrl+j` makes a new line (`shift+enter` too, where the terminal can tell it apart).
Pasting never sends; a long paste is folded into one `▤`, is sent whole, and backspace removes it.
"""

    BINDINGS = [
        Binding("enter", "send", "send", tooltip="Send the message", id="prompt.send"),
        Binding("ctrl+j,shift+enter", "newline", "newline", tooltip="New line", id="prompt.newline"),
        Binding("ctrl+c", "screen.interrupt", "stop or clear", show=False),
        Binding("pageup", "screen.scroll_transcript(-1)", "scroll up", show=False),
        Binding("pagedown", "screen.scroll_transcript(1)", "scroll down", show=False),
    ]

    async def _on_key(self, event: events.Key) -> None:
        """Take the keys of sending and of newlines in the order they were typed.

        As bindings they would be run by the app, out of order with letters still on their way to this widget: what is
        typed in one burst would be sent without its end, or not at all.
        """
        actions = {"enter": self.action_send, "ctrl+j": self.action_newline, "shift+enter": self.action_newline}
        if action := actions.get(event.key):
            event.stop()
            event.prevent_default()
            action()

    def action_send(self) -> None:
        """Ask for the draft to be sent; what becomes of it is not decided here."""
        self.post_message(Prompt.Submitted(self.draft))

    def action_newline(self) -> None:
        """Break the line at the cursor."""
        self.insert("\n")


class Marker(LineWidget):
    """The `>` before the first line."""

    DEFAULT_CSS = """
    Marker { width: 3; height: 1; color: $person; text-style: bold; }
    """

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the one line."""
        return [((" > ", ""),)]


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


class Prompt(Vertical):
    """Marker, text area and the legend of folded pastes."""

    DEFAULT_CSS = """
    Prompt {
        height: auto;
        & > Horizontal { height: auto; }
        & PromptEditor { max-height: 8; width: 1fr; }
    }
    """

    class Submitted(Message):
        """A person pressed Enter."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text
            """The exact draft; it stays in the prompt until someone takes it."""

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
