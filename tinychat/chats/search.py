"""Finding what was said: every word of a query has to be in the text of a turn, anywhere, in any letter case."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from typing import Final

from tinychat.chats.session import title_of

_INDEXED: Final = 3
"""Characters of the sequences in the index; a shorter word is looked for in the texts themselves."""
_AROUND: Final = 40
"""Characters of a snippet on each side of what was found."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A place where something was said."""

    session_id: int
    name: str
    """What the session is called."""
    number: int
    """Which of its turns."""
    role: str
    before: str
    found: str
    after: str
    """The snippet: what stands before the first word that was found, that word, and what stands after it."""


def search(database: sqlite3.Connection, query: str, limit: int) -> list[Hit]:
    """Return the turns that hold all words of a query, those of the sessions that changed last first.

    Nothing in a query is an operator: quotes, stars and minus signs are looked for as they are.
    """
    words = query.replace("\0", " ").split()
    if not words:
        return []
    long = [word for word in words if len(word) >= _INDEXED]
    short = [word for word in words if len(word) < _INDEXED]
    conditions, values = ["session.deleted IS NULL"], list[object]()
    if long:
        conditions.append("turn.id IN (SELECT rowid FROM turn_text WHERE turn_text MATCH CAST(? AS TEXT))")
        phrases = " AND ".join('"{}"'.format(word.replace('"', '""')) for word in long)
        values.append(phrases.encode("utf-8", "surrogatepass"))
    for word in short:
        conditions.append("turn.text LIKE CAST(? AS TEXT) ESCAPE '\\'")
        literal = re.sub(r"([%_\\])", r"\\\1", word)
        values.append(f"%{literal}%".encode("utf-8", "surrogatepass"))
    rows = database.execute(_SELECT.format(conditions=" AND ".join(conditions)), (*values, limit)).fetchall()
    return [
        Hit(session_id, title or title_of(first or ""), number, role, *_snippet(text, words))
        for session_id, title, first, number, role, text in rows
    ]


_SELECT: Final = """
    SELECT session.id, title, (SELECT text FROM turn AS t WHERE t.session_id = session.id AND t.number = 0),
        turn.number, role, text
    FROM turn JOIN session ON session.id = turn.session_id
    WHERE {conditions}
    ORDER BY session.changed DESC, session.id DESC, turn.number LIMIT ?
"""


def _snippet(text: str, words: list[str]) -> tuple[str, str, str]:
    """Return what stands around the first word of a query in a text, on one line."""
    found = re.search("|".join(map(re.escape, words)), text, re.IGNORECASE)
    start, end = found.span() if found else (0, 0)
    low, high = max(0, start - _AROUND), end + _AROUND
    before = ("…" if low else "") + re.sub(r"\s+", " ", text[low:start])
    after = re.sub(r"\s+", " ", text[end:high]) + ("…" if high < len(text) else "")
    return before, re.sub(r"\s+", " ", text[start:end]), after
