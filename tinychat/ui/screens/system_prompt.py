"""Shows and changes the system prompt."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen

from tinychat.ui.widgets.editor import Editor


class SystemPromptScreen(ModalScreen[str | None]):
    """Closes with the new system prompt, or with None where it is to stay as it was."""

    CSS_PATH = "system_prompt.tcss"

    BINDINGS = [
        Binding("ctrl+s,f4", "save", "save", tooltip="Use it from the next message on", id="system.save"),
        Binding("escape", "dismiss(None)", "cancel", tooltip="Leave the system prompt as it was", id="system.cancel"),
    ]

    def __init__(self, system: str) -> None:
        """Begin with the system prompt as it is."""
        super().__init__()
        self._system = system

    def compose(self) -> ComposeResult:
        """Lay out."""
        with Vertical() as box:
            box.border_title = "System prompt"
            box.border_subtitle = "Ctrl+S saves · Esc leaves it as it was"
            yield Editor(self._system, placeholder="None: the model is told nothing before you speak.")

    def on_mount(self) -> None:
        """Put the cursor at the end."""
        editor = self.query_one(Editor)
        editor.focus()
        editor.move_cursor(editor.document.end)

    def action_save(self) -> None:
        """Close with what was typed."""
        self.dismiss(self.query_one(Editor).draft)
