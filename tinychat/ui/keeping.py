"""Hands the conversation to the writer of chats whenever it changed. Knows no widget."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

from tinychat.chats.recorder import Recorder
from tinychat.chats.session import Session
from tinychat.chats.store import Saved
from tinychat.ui.conversation import Conversation

EVERY: Final = 0.25
"""Seconds between two looks; with the time a write takes, less than half a second of text is ever unsaved."""


class Keeping:
    """One chat screen's side of the writer: what belongs to which session."""

    def __init__(self, chat: Conversation, recorder: Recorder) -> None:
        """Keep `chat`, from its first turn on."""
        self._chat = chat
        self._recorder = recorder
        self._keys = count(1)
        self._key = next(self._keys)
        self._tree = chat.tree
        self._last: Session | None = None

    @property
    def path(self) -> Path:
        """Where the chats are."""
        return self._recorder.path

    @property
    def session_id(self) -> int | None:
        """The number of the session on the screen; None while it was never written."""
        return self._recorder.session_id(self._key)

    def look(self) -> list[str]:
        """Have the writer keep what changed; return what a person has to be told."""
        chat = self._chat
        if chat.tree is not self._tree:
            self._part()
        session = chat.session()
        if session.tree.turns and session != self._last:
            self._recorder.keep(self._key, session)
            self._last = session
        return self._recorder.news()

    def resume(self, saved: Saved) -> None:
        """The conversation is a session that was kept, from now on."""
        self._part()
        self._last = self._chat.session()
        self._recorder.resume(self._key, replace(saved, session=self._last))

    def flush(self) -> None:
        """Have everything written now."""
        self.look()
        self._recorder.flush()

    def _part(self) -> None:
        """Another conversation is on the screen: write the last state of the one before, and begin a session."""
        if self._last is not None:
            final = replace(self._last, tree=self._tree.state())
            if final != self._last:
                self._recorder.keep(self._key, final)
        self._key, self._tree, self._last = next(self._keys), self._chat.tree, None
