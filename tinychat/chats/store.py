"""Chats in one SQLite file: written as they grow, read back to the same state, listed, renamed, deleted.

What is written is the difference to what was written before, in one transaction. A session counts its revisions: where
another process went on with the same one meanwhile, what is here becomes a session of its own, and neither is lost.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tinychat import paths
from tinychat.chats.history import Action
from tinychat.chats.plain import packed, settings_plain, settings_read, turn_plain, turn_read, unpacked
from tinychat.chats.schema import connect, problem
from tinychat.chats.search import Hit, search
from tinychat.chats.session import Session, title_of
from tinychat.chats.tree import TreeState
from tinychat.chats.turn import Turn
from tinychat.errors import TinychatError

_LIVING: Final = "deleted IS NULL"
_NO_CHAT: Final = "There is no chat {id}."
_LIST: Final = "`tinychat sessions` lists them."


def default_path() -> Path:
    """Return where the chats are: `chats.db` in the folder for data."""
    return paths.data_dir() / "chats.db"


@dataclass(frozen=True, slots=True)
class Saved:
    """A session as it was written or read last."""

    session_id: int
    revision: int
    session: Session
    parted: bool = False
    """Whether another process had gone on with it, so that this became a session of its own."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A line of the list of chats."""

    session_id: int
    name: str
    model: str
    turns: int
    changed: float
    """Seconds since 1970."""
    created: float
    deleted: bool


class Store:
    """The database, for one thread. Every method raises `TinychatError` where the file can't be used."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the database; None is the person's own."""
        self.path = path or default_path()
        self._connection = connect(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    # One session

    def save(self, session: Session, last: Saved | None = None) -> Saved:
        """Write a session; return it as it is kept now.

        Args:
            session: All of it.
            last: What was written of it before: only the difference is written. None: it is a new one.
        """
        with self._transaction() as database:
            if last is not None:
                _, *values = _session_row(session)
                values += [time.time(), last.session_id, last.revision]
                written = database.execute(f"{_UPDATE_SESSION} WHERE id = ? AND revision = ?", values).rowcount
                if written:
                    self._write_tree(last.session_id, session.tree, last.session.tree)
                    return Saved(last.session_id, last.revision + 1, session)
            now = time.time()
            cursor = database.execute(_INSERT_SESSION, (*_session_row(session), now, now))
            assert cursor.lastrowid is not None
            self._write_tree(cursor.lastrowid, session.tree, TreeState())
            return Saved(cursor.lastrowid, 0, session, parted=last is not None)

    def read(self, session_id: int) -> Saved:
        """Read a session, its turns numbered from 0.

        Raises:
            TinychatError: There is none, or it was deleted.
        """
        with self._transaction(write=False) as database:
            row = database.execute(f"{_SELECT_SESSION} WHERE id = ? AND {_LIVING}", (session_id,)).fetchone()
            if row is None:
                raise TinychatError(_NO_CHAT.format(id=session_id), _LIST)
            title, model, weights, sampler, raw, system, head, done, revision = row
            turns = tuple(
                _turn(number, each)
                for number, each in enumerate(database.execute(_SELECT_TURNS, (session_id,)).fetchall())
            )
            actions = tuple(Action(*each) for each in database.execute(_SELECT_ACTIONS, (session_id,)))
        tree = TreeState(system, turns, head, actions, done)
        settings = None if sampler is None else settings_read(json.loads(sampler))
        return Saved(session_id, revision, Session(tree, title, model, weights, settings, bool(raw)))

    def rename(self, session_id: int, title: str) -> None:
        """Call a session otherwise; an empty title gives it back to its first question."""
        self._change(session_id, "title = CAST(? AS TEXT)", _bytes(title), living=True)

    def delete(self, session_id: int) -> None:
        """Put a session away; `restore` brings it back."""
        self._change(session_id, "deleted = ?", time.time(), living=True)

    def restore(self, session_id: int) -> None:
        """Bring a deleted session back."""
        self._change(session_id, "deleted = ?", None, living=False)

    def erase(self, session_id: int) -> None:
        """Remove a session for good: its bytes are overwritten."""
        with self._transaction() as database:
            if not database.execute("DELETE FROM session WHERE id = ?", (session_id,)).rowcount:
                raise TinychatError(_NO_CHAT.format(id=session_id), _LIST)
            # The index keeps the entries of what was deleted, marked as such, until its parts are joined.
            database.execute("INSERT INTO turn_text(turn_text) VALUES ('optimize')")
        # What was said stands in the log, too, until it is emptied; where another process reads, it does that later.
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # All of them

    def summaries(self, limit: int = 1000, *, deleted: bool = False) -> list[Summary]:
        """Return the sessions, the one that changed last first; the deleted ones instead, if asked."""
        with self._transaction(write=False) as database:
            which = f"{'NOT ' if deleted else ''}({_LIVING})"
            rows = database.execute(_SELECT_SUMMARIES.format(which=which), (limit,)).fetchall()
        return [
            Summary(session_id, title or title_of(first or ""), model, turns, changed, created, deleted)
            for session_id, title, model, turns, changed, created, first in rows
        ]

    def latest(self) -> int | None:
        """Return the session that changed last, None where there is none."""
        newest = self.summaries(1)
        return newest[0].session_id if newest else None

    def search(self, query: str, limit: int = 100) -> list[Hit]:
        """Return where all words of `query` were said (see `search`), the sessions that changed last first."""
        with self._transaction(write=False) as database:
            return search(database, query, limit)

    # Helpers

    def _change(self, session_id: int, what: str, value: object, *, living: bool) -> None:
        with self._transaction() as database:
            which = f"id = ? AND {'' if living else 'NOT '}({_LIVING})"
            if not database.execute(f"UPDATE session SET {what} WHERE {which}", (value, session_id)).rowcount:
                what = _NO_CHAT if living else "No deleted chat has the number {id}."
                raise TinychatError(what.format(id=session_id), _LIST if living else "`--deleted` lists them.")

    def _write_tree(self, session_id: int, new: TreeState, old: TreeState) -> None:
        """Write what differs between two states of a tree; turns are only ever added or changed."""
        numbers: dict[int | None, int | None] = {t.turn_id: number for number, t in enumerate(new.turns)}
        for number, (turn, before) in enumerate(zip_longest(new.turns, old.turns)):
            if turn is not None and turn is not before and turn != before:
                statement = _INSERT_TURN if before is None else _UPDATE_TURN
                place = numbers.get(turn.parent), numbers.get(turn.origin)
                self._connection.execute(statement, (*_turn_row(turn, *place), session_id, number))
        for number, (action, before_action) in enumerate(zip_longest(new.actions, old.actions)):
            if action is None:
                self._connection.execute(
                    "DELETE FROM action WHERE session_id = ? AND number >= ?", (session_id, number)
                )
                break
            if action != before_action:
                row = (numbers.get(action.before), numbers.get(action.after), numbers.get(action.removed))
                self._connection.execute("REPLACE INTO action VALUES (?, ?, ?, ?, ?)", (session_id, number, *row))

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        try:
            self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # some errors end it by themselves
                    self._connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OSError) as error:
            raise problem(error, self.path) from error
        except (ValueError, TypeError, KeyError) as error:
            raise TinychatError(
                f"{self.path} holds a chat that can't be read: {error}.", "Delete it, or update tinychat."
            ) from error


_SESSION_COLUMNS: Final = ("title", "model", "weights", "sampler", "raw", "system", "head", "done")
_TEXTS: Final = frozenset({"title", "model", "weights", "system", "text", "thinking"})
"""Columns whose text goes in as bytes: see `_bytes`."""


def _value(column: str) -> str:
    return "CAST(? AS TEXT)" if column in _TEXTS else "?"


_INSERT_SESSION: Final = (
    f"INSERT INTO session ({', '.join(_SESSION_COLUMNS)}, created, changed, revision) "
    f"VALUES ({', '.join(map(_value, _SESSION_COLUMNS))}, ?, ?, 0)"
)
# The title is left alone, since it may have been changed in another window. Where the session was deleted there while a
# person goes on with it here, it is back.
_UPDATE_SESSION: Final = (
    f"UPDATE session SET {', '.join(f'{c} = {_value(c)}' for c in _SESSION_COLUMNS[1:])}, "
    "changed = ?, deleted = NULL, revision = revision + 1"
)
_SELECT_SESSION: Final = f"SELECT {', '.join(_SESSION_COLUMNS)}, revision FROM session"
_SELECT_SUMMARIES: Final = """
    SELECT id, title, model, (SELECT count(*) FROM turn WHERE session_id = session.id), changed, created,
        (SELECT text FROM turn WHERE session_id = session.id AND number = 0)
    FROM session WHERE {which} ORDER BY changed DESC, id DESC LIMIT ?
"""

_TURN_COLUMNS: Final = (
    *("parent", "origin", "role", "text", "thinking", "ids", "vocabulary", "reason", "seed", "model", "weights"),
    *("settings", "forced"),
)
_PLACE: Final = ("session_id", "number")
_INSERT_TURN: Final = (
    f"INSERT INTO turn ({', '.join((*_TURN_COLUMNS, *_PLACE))}) VALUES ({', '.join(map(_value, _TURN_COLUMNS))}, ?, ?)"
)
_UPDATE_TURN: Final = (
    f"UPDATE turn SET {', '.join(f'{c} = {_value(c)}' for c in _TURN_COLUMNS)} WHERE session_id = ? AND number = ?"
)
_SELECT_TURNS: Final = f"SELECT {', '.join(_TURN_COLUMNS)} FROM turn WHERE session_id = ? ORDER BY number"
_SELECT_ACTIONS: Final = "SELECT before, after, removed FROM action WHERE session_id = ? ORDER BY number"


def _bytes(text: str) -> bytes:
    """Return a text as SQLite is given it: lone surrogates, which Python refuses to hand over, included."""
    return text.encode("utf-8", "surrogatepass")


def _session_row(session: Session) -> tuple[object, ...]:
    numbers: dict[int | None, int] = {turn.turn_id: number for number, turn in enumerate(session.tree.turns)}
    sampler = None if session.sampler is None else json.dumps(settings_plain(session.sampler))
    texts = _bytes(session.title), _bytes(session.model), _bytes(session.weights)
    return (
        *texts,
        sampler,
        session.raw,
        _bytes(session.tree.system),
        numbers.get(session.tree.head),
        session.tree.done,
    )


def _turn_row(turn: Turn, parent: int | None, origin: int | None) -> tuple[object, ...]:
    settings = json.dumps(turn_plain(turn)["settings"])
    return (
        *(parent, origin, turn.role, _bytes(turn.text), _bytes(turn.thinking), packed(turn.ids), turn.vocabulary),
        *(turn.reason, turn.seed, _bytes(turn.model), _bytes(turn.weights), settings, turn.forced),
    )


def _turn(number: int, row: tuple[object, ...]) -> Turn:
    values = dict(zip(_TURN_COLUMNS, row, strict=True))
    ids, settings = values["ids"], values["settings"]
    assert isinstance(ids, bytes)
    assert isinstance(settings, str)
    return turn_read(values | {"turn_id": number, "ids": unpacked(ids), "settings": json.loads(settings)})
