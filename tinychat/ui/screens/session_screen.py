"""The chats that are kept: saving this one as it grows, forks, and going on with another one."""

from __future__ import annotations

from tinychat.chats.store import Saved
from tinychat.protocol import ModelReady
from tinychat.ui.bridge import Bridge
from tinychat.ui.conversation import Conversation
from tinychat.ui.keeping import EVERY, Keeping
from tinychat.ui.remarks import Remark
from tinychat.ui.screens.revision_screen import RevisionScreen
from tinychat.ui.screens.sessions import SessionsScreen
from tinychat.ui.widgets.note import Note

_NOT_KEPT = "This is a private chat: nothing of it is kept."


class SessionScreen(RevisionScreen):
    """Adds what a person does with whole chats."""

    def __init__(self, bridge: Bridge, chat: Conversation, keeping: Keeping | None) -> None:
        """Prepare the screen.

        Args:
            bridge: The engine.
            chat: The conversation to show.
            keeping: Keeps it; None: it is private.
        """
        super().__init__(bridge, chat)
        self.keeping = keeping

    def begin(self) -> None:
        """Begin to save, too."""
        super().begin()
        if self.keeping is not None:
            self.set_interval(EVERY, self._keep)

    def _keep(self) -> None:
        if self.keeping is not None:
            for sentence in self.keeping.look():
                self.transcript.add(Note("chats", [Remark(sentence, "warning")]))

    def _show_model(self, ready: ModelReady) -> None:
        super()._show_model(ready)
        self.sampler_panel.start(self.chat.sampler, dict(ready.sources) | self._sources(ready))
        if ready.info.format == "base":  # nobody knew when the turns of a chat from before were put on the screen
            for view in self.views.values():
                view.show_raw(trim=not self.chat.raw)

    def _sources(self, ready: ModelReady) -> dict[str, str]:
        """Return which settings are those of a chat that was gone on with."""
        fields = type(ready.sampler).__dataclass_fields__
        changed = (name for name in fields if getattr(ready.sampler, name) != getattr(self.chat.sampler, name))
        return dict.fromkeys(changed, "this chat")

    def action_fork(self) -> None:
        """Go on from a reply in a chat of its own."""
        if (view := self.transcript.chosen) is None or self._busy():
            return
        if self.keeping is None:
            self.hint(f"{_NOT_KEPT} Alt+E and Ctrl+R make versions in it.")
            return
        self.keeping.look()  # the chat that stays behind as it is now
        self.chat.fork(view.turn.turn_id)
        self.show_path()
        told = "A chat of its own from here on; the one it came from is kept as it was (Alt+S)."
        self.transcript.add(Note("fork", [Remark(told)]))
        self.phase_changed()

    def action_sessions(self) -> None:
        """Find another chat."""
        if self.keeping is None:
            self.hint(_NOT_KEPT)
            return
        self.keeping.flush()
        self.app.push_screen(SessionsScreen(self.keeping.path, self.keeping.session_id), self._chosen)

    async def _chosen(self, saved: Saved | None) -> None:
        """Go on with a chat that was chosen."""
        if saved is None or self.keeping is None or saved.session_id == self.keeping.session_id:
            return
        if self.editing is not None:
            self.leave_edit()
        self.keeping.look()
        self.chat.resume(saved.session)
        self.keeping.resume(saved)
        self.views.clear()
        self.told.clear()
        await self.transcript.clear()
        self.show_resumed()
        if self.chat.info is not None:
            changed = dict.fromkeys(type(self.chat.sampler).__dataclass_fields__, "this chat")
            self.sampler_panel.start(self.chat.sampler, changed if saved.session.sampler else {})
        self.phase_changed()

    def show_resumed(self) -> None:
        """Show a chat that was gone on with."""
        self.show_system_prompt()
        told = [Remark(f"Going on with “{self.chat.session().name}”.")]
        if (other := self.chat.another_model()) and self.keeping is not None:
            way = f"`tinychat run --session {self.keeping.session_id}` loads {other}."
            told.append(Remark(f"It was with {other}; {self.chat.name} reads it anew from its text. {way}", "warning"))
        self.transcript.add(Note("chat", told))
        self.show_path()
