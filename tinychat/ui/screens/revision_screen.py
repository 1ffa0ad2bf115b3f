"""Changing what was said: edits of either side, going on from a reply, dictating one, undo and redo, forks.

Every one of them adds a version; the tree of turns keeps them all, and one path is shown.
"""

from __future__ import annotations

from typing import Literal

from tinychat.chats import Turn
from tinychat.ui.activity import Activity
from tinychat.ui.bridge import Bridge
from tinychat.ui.conversation import Conversation, Phase
from tinychat.ui.screens.version_screen import VersionScreen

_ONE_AT_A_TIME = "One reply at a time: Esc stops the one being made."


class RevisionScreen(VersionScreen):
    """Adds the keys that change what was said. An edit is written in the prompt, where the draft makes room for it."""

    def __init__(self, bridge: Bridge, chat: Conversation) -> None:
        super().__init__(bridge, chat)
        self.editing: int | None = None
        """The turn that the prompt holds another wording of."""
        self._aside = ""
        """The draft that made room for an edit."""

    def action_edit(self, side: Literal["question", "reply"]) -> None:
        """Take what was said into the prompt, to be said otherwise."""
        view = self.transcript.chosen
        if view is None:
            self.hint("Nothing was said yet.")
            return
        turn = self.chat.tree[view.turn.turn_id]
        if side == "question" and turn.parent is not None:
            turn = self.chat.tree[turn.parent]
        elif turn.reason is None:
            self.hint("This reply is still being made: Esc stops it.")
            return
        if self.editing is None:
            self._aside = self.editor.draft
        self.editing = turn.turn_id
        self.editor.clear_draft()
        self.editor.put(self._as_shown(turn))
        self.editor.focus()
        self.refresh_bindings()
        self.show_activity()

    def say_edit(self, text: str) -> None:
        """Say what was edited."""
        turn_id = self.editing
        self.leave_edit()
        if turn_id is None or turn_id not in self.chat.tree:
            return  # another chat came in between
        if self._as_shown(self.chat.tree[turn_id]) == text and self.chat.tree[turn_id].role == "assistant":
            self.hint("The reply says this already.")
            return
        _, reply = self.chat.edit(turn_id, text)
        self.show_path()
        if reply is None:
            self.hint("Alt+C has the model go on from here.")
        self.phase_changed()

    def leave_edit(self) -> None:
        """Put the draft back where it was."""
        self.editing = None
        self.editor.clear_draft()
        if self._aside:
            self.editor.put(self._aside)
        self._aside = ""
        self.refresh_bindings()
        self.show_activity()

    def action_go_on(self) -> None:
        """Have the model go on from the end of a reply."""
        if (view := self.transcript.chosen) is None or self._busy():
            return
        if not self.chat.tree[view.turn.turn_id].unfinished:
            self.hint("This reply has come to its end. Alt+A edits it, Ctrl+R has it made again.")
            return
        self.chat.go_on(view.turn.turn_id)
        self.show_path()
        self.phase_changed()

    def action_dictate(self) -> None:
        """Have the last question answered by a reply that begins with the draft."""
        text = self.editor.draft
        if self._busy():
            return
        if not text.strip() or self.chat.tree.head is None or self.editing is not None:
            self.hint("Type how the reply shall begin, then press Alt+D: the last question is answered so.")
            return
        self.chat.dictate(text)
        self.editor.clear_draft()
        self.show_path()
        self.phase_changed()

    def action_undo(self) -> None:
        """Take the last thing back."""
        if not self._busy():
            self._went(self.chat.undo(), "Undone: Alt+Y does it again.", "There is nothing to undo.")

    def action_redo(self) -> None:
        """Do again what was taken back."""
        if not self._busy():
            self._went(self.chat.redo(), "Done again.", "There is nothing to do again.")

    def action_remove(self) -> None:
        """Delete a reply and what follows it."""
        if (view := self.transcript.chosen) is not None and not self._busy():
            self.chat.tree.remove(view.turn.turn_id)
            self._went(True, "Deleted, with what followed it: Alt+U brings it back.")

    def _went(self, done: bool, yes: str, no: str = "") -> None:
        if done:
            self.show_path()
            self.phase_changed()
        self.hint(yes if done else no)

    def _busy(self) -> bool:
        """Whether nothing of this can be done now; says why."""
        if self.chat.phase is not Phase.READY:
            self.hint(_ONE_AT_A_TIME if self.chat.busy else "The model is not ready yet.")
        return self.chat.phase is not Phase.READY

    def _as_shown(self, turn: Turn) -> str:
        """Return what a turn says as the transcript shows it: a base model's replies begin with a space."""
        base = self.chat.info is not None and self.chat.info.format == "base" and not self.chat.raw
        return turn.text.removeprefix(" ") if base and turn.role == "assistant" else turn.text

    def show_activity(self) -> None:
        """Say what the engine is doing, or what the prompt is for where that is not a new message."""
        if self.editing is not None and self.chat.phase is Phase.READY:
            reply = self.editing in self.chat.tree and self.chat.tree[self.editing].role == "assistant"
            what, enter = ("the model's reply", "puts it there") if reply else ("your question", "asks it")
            self.status.show(Activity(f"EDITING {what}", None, f"Enter {enter} · Esc leaves it"))
        else:
            super().show_activity()

    def check_key(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys apply: None greys one."""
        match action:
            case "edit" | "go_on" | "remove" | "fork":
                return True if self.transcript.chosen is not None else None
            case "dictate":
                return True if self.chat.tree.head is not None else None
            case "undo":
                return True if self.chat.tree.can_undo else None
            case "redo":
                return True if self.chat.tree.can_redo else None
        return super().check_key(action, parameters)
