"""The database of chats: its tables, how older ones become newer ones, and what can be wrong with its file."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from tinychat.errors import TinychatError

BUSY_SECONDS: Final = 5.0
"""How long to wait for another process that is writing."""

MIGRATIONS: Final = (
    """
    CREATE TABLE session (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        title TEXT NOT NULL,
        model TEXT NOT NULL,
        weights TEXT NOT NULL,
        sampler TEXT,                 -- JSON; NULL: none were touched
        raw INTEGER NOT NULL,
        system TEXT NOT NULL,
        head INTEGER,
        done INTEGER NOT NULL,
        created REAL NOT NULL,        -- seconds since 1970, UTC
        changed REAL NOT NULL,
        deleted REAL,                 -- when; NULL: it isn't
        revision INTEGER NOT NULL     -- counts what was written, so that two writers notice each other
    );
    CREATE INDEX session_changed ON session(changed);
    CREATE TABLE turn (
        id INTEGER PRIMARY KEY,
        session_id INTEGER NOT NULL REFERENCES session(id) ON DELETE CASCADE,
        number INTEGER NOT NULL,      -- place among the session's turns, from 0
        parent INTEGER,               -- number of the turn it follows
        role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
        text TEXT NOT NULL,
        thinking TEXT NOT NULL,
        ids BLOB NOT NULL,            -- 4 bytes an id, little-endian
        vocabulary TEXT NOT NULL,
        reason TEXT,
        seed INTEGER,
        model TEXT NOT NULL,
        weights TEXT NOT NULL,
        settings TEXT NOT NULL,       -- JSON: [[index of the first token, settings], ...]
        origin INTEGER,
        forced INTEGER NOT NULL,
        UNIQUE (session_id, number),
        FOREIGN KEY (session_id, parent) REFERENCES turn(session_id, number) ON DELETE CASCADE
    );
    CREATE TABLE action (
        session_id INTEGER NOT NULL REFERENCES session(id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        before INTEGER,
        after INTEGER,
        removed INTEGER,
        PRIMARY KEY (session_id, number)
    ) WITHOUT ROWID;
    -- Sequences of three characters: any part of a word is found, also in languages that put no spaces between them.
    CREATE VIRTUAL TABLE turn_text USING fts5(text, content='turn', content_rowid='id', tokenize='trigram');
    CREATE TRIGGER turn_inserted AFTER INSERT ON turn BEGIN
        INSERT INTO turn_text(rowid, text) VALUES (new.id, new.text);
    END;
    CREATE TRIGGER turn_deleted AFTER DELETE ON turn BEGIN
        INSERT INTO turn_text(turn_text, rowid, text) VALUES ('delete', old.id, old.text);
    END;
    CREATE TRIGGER turn_updated AFTER UPDATE OF text ON turn WHEN old.text IS NOT new.text BEGIN
        INSERT INTO turn_text(turn_text, rowid, text) VALUES ('delete', old.id, old.text);
        INSERT INTO turn_text(rowid, text) VALUES (new.id, new.text);
    END;
    """,
)
"""What makes version n + 1 of a version n, from the empty file on. Never changed once released, only added to."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the database, made or brought up to date where need be; for the calling thread alone.

    Raises:
        TinychatError: It can't be opened, is damaged, or a newer tinychat wrote it.
    """
    connection: sqlite3.Connection | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        # Typed text may hold lone surrogates, which no UTF-8 has: they go in and out as they are.
        connection.text_factory = lambda data: data.decode("utf-8", "surrogatepass")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA synchronous = NORMAL")  # with a write-ahead log, whole after a kill at any moment
        if _version(connection) != len(MIGRATIONS):
            _migrate(connection, path)
    except (sqlite3.Error, OSError) as error:
        if connection is not None:
            connection.close()
        raise problem(error, path) from error
    except TinychatError:
        if connection is not None:
            connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)  # another process may have been faster
        if version > len(MIGRATIONS):
            raise TinychatError(
                f"{path} was written by a newer tinychat (version {version} of its form; this one knows "
                f"{len(MIGRATIONS)}).",
                "Update tinychat.",
            )
        for number in range(version, len(MIGRATIONS)):
            for statement in _statements(MIGRATIONS[number]):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    """Return the statements of a script one by one: Python's own way to run a script ends the transaction."""
    statements: list[str] = []
    part = ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            statements.append(part)
            part = ""
    return statements


def problem(error: Exception, path: Path) -> TinychatError:
    """Return what is wrong with the database as a sentence, and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) == 28:
        return TinychatError(f"The disk is full: {path} can't grow.", "Make room on it.")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return TinychatError(
            f"{path}, which holds the chats, is damaged ({error}).",
            "Move it away, and tinychat begins a new one; `sqlite3 FILE .recover` may save what is in it.",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return TinychatError(
            f"Another program has kept {path} locked for {BUSY_SECONDS:g} seconds.", "Close that program."
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) or isinstance(error, OSError):
        return TinychatError(f"{path} can't be written: {error}.", "Let tinychat write there, or set XDG_DATA_HOME.")
    return TinychatError(f"{path}, which holds the chats, can't be used: {error}.", "`--private` keeps no chats.")
