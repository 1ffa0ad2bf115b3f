"""The writer: a thread that keeps chats on disk while they grow, so that the screen never waits for one.

It is handed whole sessions, as often as they change, and writes the newest of each; what it missed between two is in
the next one, too. Where the file can't be written, it says so once, keeps what it was handed, and tries again.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

from tinychat.chats.session import Session
from tinychat.chats.store import Saved, Store, default_path
from tinychat.errors import TinychatError

RETRY_SECONDS: Final = 2.0
"""Between two tries to write where the last one failed."""
_LOG: Final = logging.getLogger(__name__)


class Recorder:
    """Keeps sessions. All its methods are for the UI thread, and none of them waits but `flush` and `close`."""

    def __init__(self, path: Path | None = None) -> None:
        """Start the thread; the file is opened with the first session to write. None: the person's own file."""
        self._path = path or default_path()
        self._changed = threading.Condition()
        self._wanted: dict[int, Session] = {}
        self._saved: dict[int, Saved] = {}
        self._news: list[str] = []
        self._writing = self._closed = False
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="chats writer", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """Where the chats are kept."""
        return self._path

    @property
    def problem(self) -> str:
        """Why nothing can be written now, as a sentence and a remedy; empty: it can."""
        return self._problem

    def keep(self, key: int, session: Session) -> None:
        """Write a session, soon; what came before it under the same key is written over."""
        with self._changed:
            self._wanted[key] = session
            self._changed.notify_all()

    def resume(self, key: int, saved: Saved) -> None:
        """Go on with a session that was read: what is kept under this key from now on is written into it."""
        with self._changed:
            self._saved[key] = saved

    def session_id(self, key: int) -> int | None:
        """Return the number of the session that is kept under a key; None while it was never written."""
        with self._changed:
            saved = self._saved.get(key)
        return saved.session_id if saved else None

    def news(self) -> list[str]:
        """Return what a person has to be told since the last call: that nothing can be saved, that it can again."""
        with self._changed:
            told, self._news = self._news, []
        return told

    def flush(self, timeout: float = 1.0) -> bool:
        """Wait until all is written; return whether it was, within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._wanted and not self._writing, timeout)

    def close(self, timeout: float = 1.0) -> bool:
        """Write what is left and end the thread; return whether all was written within `timeout` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive() and not self._wanted

    def _run(self) -> None:
        store: Store | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if not self._wanted:
                    break
                wanted, self._wanted, self._writing = self._wanted, {}, True
            try:
                store = store or Store(self._path)
                for key in list(wanted):
                    self._save(store, key, wanted[key])
                    del wanted[key]
                self._tell("")
            except Exception as error:  # whatever it is, the chat goes on
                _LOG.debug("A chat could not be written.", exc_info=error)
                if store is not None:
                    store.close()
                    store = None
                self._tell(str(error) if isinstance(error, TinychatError) else f"{type(error).__name__}: {error}.")
            with self._changed:
                self._wanted = wanted | self._wanted
                self._writing = False
                self._changed.notify_all()
                if self._problem:
                    if self._closed:
                        break
                    self._changed.wait_for(lambda: self._closed, RETRY_SECONDS)
        if store is not None:
            store.close()

    def _save(self, store: Store, key: int, session: Session) -> None:
        saved = store.save(session, self._saved.get(key))
        with self._changed:
            self._saved[key] = saved
            if saved.parted:
                self._news.append(
                    "Another window went on with this chat. Yours is kept beside it, as a chat of its own."
                )

    def _tell(self, problem: str) -> None:
        with self._changed:
            if problem and not self._problem:
                self._news.append(f"This chat is not being saved. {problem}")
            elif self._problem and not problem:
                self._news.append("The chat is being saved again.")
            self._problem = problem
