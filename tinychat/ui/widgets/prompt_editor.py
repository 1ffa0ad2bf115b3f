"""The text area of the prompt."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.message import Message

from tinychat.ui.widgets.editor import Editor


class PromptEditor(Editor):
    """The text area of the prompt: Enter sends."""

    HELP = """
**The prompt.** `Enter` sends, `Ctrl+J` breaks the line (`Shift+Enter` too, where the terminal can tell it apart).
Pasting never sends; a long paste is folded into one `▤`, is sent whole, and `Backspace` removes it.
"""

    BINDINGS = [
        Binding("enter", "send", "send", tooltip="Send the message", id="prompt.send"),
        Binding("ctrl+j,shift+enter", "newline", "newline", tooltip="New line", id="prompt.newline"),
        # A text area has keys of its own for these.
        Binding("ctrl+c", "screen.interrupt", "stop or clear", show=False, tooltip="Copy, stop or clear"),
        Binding("pageup", "screen.scroll_transcript(-1)", "scroll up", show=False, tooltip="Scroll up"),
        Binding("pagedown", "screen.scroll_transcript(1)", "scroll down", show=False, tooltip="Scroll down"),
    ]

    class Submitted(Message):
        """A person pressed Enter."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text
            """The exact draft; it stays in the prompt until someone takes it."""

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
        self.post_message(self.Submitted(self.draft))

    def action_newline(self) -> None:
        """Break the line at the cursor."""
        self.insert("\n")
