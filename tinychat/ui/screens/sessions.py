"""Alt+S: the chats that were kept, to be found, gone on with, renamed and deleted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import OptionList, Static, TextArea

from tinychat.chats.search import Hit
from tinychat.chats.store import Saved, Store, Summary
from tinychat.errors import TinychatError
from tinychat.ui.foreign_text import inert, one_line
from tinychat.ui.widgets.editor import Editor

_PAUSE: Final = 0.1
"""Seconds after the last key before the chats are searched."""
_MOST: Final = 200
"""Chats that are listed."""
_KEYS: Final = "Enter goes on with it · F2 renames · F8 deletes · Esc closes"


class SessionsScreen(ModalScreen[Saved | None]):
    """Closes with the chat to go on with, or with None."""

    CSS_PATH = "sessions.tcss"

    BINDINGS = [
        Binding("escape", "leave", "close", tooltip="Back to the chat", id="sessions.close", priority=True),
        Binding("enter", "choose", "go on", tooltip="Go on with this chat", id="sessions.choose", priority=True),
        Binding("up", "move(-1)", "above", show=False, priority=True),
        Binding("down", "move(1)", "below", show=False, priority=True),
        Binding("pageup", "move(-8)", "page up", show=False, priority=True),
        Binding("pagedown", "move(8)", "page down", show=False, priority=True),
        Binding("f2", "rename", "rename", tooltip="Call it otherwise", id="sessions.rename", priority=True),
        Binding(
            "f8", "delete", "delete", tooltip="Delete it; Ctrl+Z brings it back", id="sessions.delete", priority=True
        ),
        Binding("ctrl+z", "restore", "undo", tooltip="Bring back what was deleted", id="sessions.undo", priority=True),
    ]

    def __init__(self, path: Path, current: int | None) -> None:
        """Prepare the list.

        Args:
            path: Where the chats are.
            current: The chat on the screen.
        """
        super().__init__()
        self._path = path
        self._current = current
        self._store: Store | None = None
        self._found: Sequence[Summary | Hit] = ()
        self._query = ""
        self._renaming: int | None = None
        self._deleted: list[int] = []
        self._waiting: Timer | None = None

    def compose(self) -> ComposeResult:
        """Lay out."""
        with Vertical() as box:
            box.border_title = "Chats"
            box.border_subtitle = _KEYS
            yield Editor(placeholder="Type to search in all that was said")
            chats = OptionList()
            chats.can_focus = False
            yield chats
            yield Static(id="told")

    def on_mount(self) -> None:
        """Open the file and list what there is."""
        self.query_one(Editor).focus()
        self._list()

    def on_unmount(self) -> None:
        """Close the file."""
        if self._store is not None:
            self._store.close()

    @on(TextArea.Changed)
    def _typed(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
        if self._renaming is None:
            self._waiting = self.set_timer(_PAUSE, self._list)

    def _list(self) -> None:
        """List the chats, or those in which all words of the search were said."""
        query = self.query_one(Editor).draft
        chats = self.query_one(OptionList)
        before = (chats.highlighted or 0) if query == self._query else 0
        self._query, problem = query, ""
        try:
            if self._store is None and self._path.exists():
                self._store = Store(self._path)
            if self._store is None:
                self._found = ()
            elif query.strip():
                self._found = self._store.search(query, _MOST)
            else:
                self._found = self._store.summaries(_MOST)
        except TinychatError as error:
            self._found, problem = (), str(error)
        chats.clear_options()
        chats.add_options([self._line(each) for each in self._found])
        if self._found:
            chats.highlighted = min(before, len(self._found) - 1)
        else:
            self._tell(problem or ("Nothing was found." if query.strip() else "No chat was kept yet."))

    def _line(self, each: Summary | Hit) -> Content:
        name = inert(one_line(each.name) or "(no title)")
        if isinstance(each, Hit):
            snippet = (
                inert(one_line(each.before)),
                (one_line(each.found), "bold $primary"),
                inert(one_line(each.after)),
            )
            return Content.assemble(name, "\n  ", *snippet)
        when = f"{datetime.fromtimestamp(each.changed):%Y-%m-%d %H:%M}"
        model = one_line(each.model.rpartition("/")[2])
        here = " · on the screen" if each.session_id == self._current else ""
        return Content.assemble(name, "\n", (f"  {when} · {each.turns} turns · {model}{here}", "$quiet"))

    @property
    def _at(self) -> Summary | Hit | None:
        at = self.query_one(OptionList).highlighted
        return self._found[at] if at is not None and at < len(self._found) else None

    @on(OptionList.OptionSelected)
    def action_choose(self) -> None:
        """Go on with the chat, or rename it."""
        if self._renaming is not None:
            self._rename(self._renaming, self.query_one(Editor).draft)
            return
        try:
            if self._at is not None and self._store is not None:
                self.dismiss(self._store.read(self._at.session_id))
        except TinychatError as error:
            self._tell(str(error))

    def action_leave(self) -> None:
        """Leave the title as it was, or close."""
        if self._renaming is not None:
            self._end_renaming()
        else:
            self.dismiss(None)

    def action_move(self, rows: int) -> None:
        """Go up or down."""
        chats = self.query_one(OptionList)
        if self._found and self._renaming is None:
            chats.highlighted = min(max((chats.highlighted or 0) + rows, 0), len(self._found) - 1)

    def action_rename(self) -> None:
        """Have the title written where the search is."""
        if self._at is None or self._renaming is not None:
            return
        self._renaming = self._at.session_id
        editor = self.query_one(Editor)
        editor.clear_draft()
        editor.put(self._at.name)
        self._tell("Enter gives the chat this title, Esc leaves it as it was.")

    def _rename(self, session_id: int, title: str) -> None:
        try:
            if self._store is not None:
                self._store.rename(session_id, " ".join(title.split()))
            self._tell("Renamed.")
        except TinychatError as error:
            self._tell(str(error))
        self._end_renaming()

    def _end_renaming(self) -> None:
        self.query_one(Editor).clear_draft()
        self._renaming = None
        self._list()

    def action_delete(self) -> None:
        """Delete the chat."""
        if (at := self._at) is None or self._store is None or self._renaming is not None:
            return
        if at.session_id == self._current:
            self._tell("This chat is on the screen. Esc and Ctrl+N begin another; then it can be deleted.")
            return
        try:
            self._store.delete(at.session_id)
        except TinychatError as error:
            self._tell(str(error))
            return
        self._deleted.append(at.session_id)
        self._tell("Deleted: Ctrl+Z brings it back.")
        self._list()

    def action_restore(self) -> None:
        """Bring back what was deleted last."""
        if self._deleted and self._store is not None:
            try:
                self._store.restore(self._deleted.pop())
            except TinychatError as error:
                self._tell(str(error))
            self._list()

    def _tell(self, sentence: str) -> None:
        self.query_one("#told", Static).update(inert(sentence))
