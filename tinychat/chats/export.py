"""A conversation for other programs: as Markdown, as plain text, as messages, and as a file that can be read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any, Final

from tinychat.chats.history import Action
from tinychat.chats.plain import settings_plain, settings_read, turn_plain, turn_read
from tinychat.chats.session import Session
from tinychat.chats.tree import Tree, TreeState
from tinychat.chats.turn import Turn
from tinychat.errors import TinychatError

FORMAT: Final = "tinychat session"
VERSION: Final = 1

_FENCES: Final = ("```", "~~~")


def markdown(session: Session) -> str:
    """Return the path as Markdown: each turn as it is, under a heading that says who spoke. Thinking is quoted."""
    parts = [f"# {_one_line(session.name)}"]
    if session.tree.system:
        parts += ["## System", _closed(session.tree.system)]
    for turn in _path(session):
        parts.append(f"## {'You' if turn.role == 'user' else _one_line(turn.model) or 'Assistant'}")
        if turn.thinking:
            parts.append("\n".join(f"> {line}".rstrip() for line in turn.thinking.strip("\n").splitlines()))
        parts.append(_closed(turn.text.strip("\n")))
    return "\n\n".join(part for part in parts if part) + "\n"


def plain_text(session: Session) -> str:
    """Return the path as plain text, without thinking: who spoke, a colon, what they said."""
    parts = [f"System: {session.tree.system}"] if session.tree.system else []
    for turn in _path(session):
        who = "You" if turn.role == "user" else _one_line(turn.model) or "Assistant"
        parts.append(f"{who}: {turn.text.strip()}")
    return "\n\n".join(parts) + "\n"


def messages(session: Session) -> list[dict[str, str]]:
    """Return the path as the list of messages that `tinychat prompt --messages` and other programs take."""
    system = [{"role": "system", "content": session.tree.system}] if session.tree.system else []
    return system + [{"role": turn.role, "content": turn.text} for turn in _path(session)]


def whole(session: Session) -> str:
    """Return all of a session as JSON that `read_whole` makes the same session of."""
    tree = session.tree.renumbered(count())
    plain = {
        "format": FORMAT,
        "version": VERSION,
        "title": session.title,
        "model": session.model,
        "weights": session.weights,
        "sampler": None if session.sampler is None else settings_plain(session.sampler),
        "raw": session.raw,
        "system": tree.system,
        "head": tree.head,
        "turns": [turn_plain(turn) for turn in tree.turns],
        "actions": [asdict(action) for action in tree.actions],
        "done": tree.done,
    }
    return json.dumps(plain, indent=1) + "\n"  # ASCII, so that lone surrogates go through any program


def read_whole(text: str, name: str) -> Session:
    """Return the session of a file that `whole` wrote, its turns numbered from 0.

    Raises:
        TinychatError: It is no such file, or holds what can't be; the sentence has its `name`.
    """
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise TinychatError(f"{name} is no JSON: {error}.", _REMEDY) from None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise TinychatError(f"{name} is no chat that tinychat exported.", _REMEDY)
    if plain.get("version") != VERSION:
        raise TinychatError(f"{name} has version {plain.get('version')!r} of its form.", "Update tinychat.")
    try:
        session = _read(plain)
        _check(session.tree)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise TinychatError(f"{name} holds what can't be: {error}.", _REMEDY) from None
    return session


_REMEDY: Final = "`tinychat sessions export ID --format whole` writes files that can be imported."


def _read(plain: Mapping[str, Any]) -> Session:
    texts = {name: plain[name] for name in ("title", "model", "weights", "system")}
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError("a text is none")
    system = texts.pop("system")
    actions = tuple(Action(each["before"], each["after"], each["removed"]) for each in plain["actions"])
    tree = TreeState(system, tuple(map(turn_read, plain["turns"])), plain["head"], actions, int(plain["done"]))
    sampler = None if plain["sampler"] is None else settings_read(plain["sampler"])
    return Session(tree, **texts, sampler=sampler, raw=bool(plain["raw"]))


def _check(tree: TreeState) -> None:
    """See that a tree is one: numbers in order, parents before what follows them, sides that alternate.

    Raises:
        ValueError: It is none.
    """
    for number, turn in enumerate(tree.turns):
        if turn.turn_id != number:
            raise ValueError(f"turn {number} has number {turn.turn_id}")
        if turn.parent is None:
            follows = turn.role == "user"
        else:
            follows = turn.parent in range(number) and tree.turns[turn.parent].role != turn.role
        if not follows or turn.origin not in (None, *range(number)):
            raise ValueError(f"turn {number} can't follow turn {turn.parent}")
    known = (None, *range(len(tree.turns)))
    places = [tree.head, *(place for each in tree.actions for place in (each.before, each.after, each.removed))]
    if any(place not in known for place in places) or tree.done not in range(len(tree.actions) + 1):
        raise ValueError("it names turns that it doesn't have")


def _path(session: Session) -> Sequence[Turn]:
    return [turn for turn in Tree.restored(session.tree).path() if turn.said]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _closed(text: str) -> str:
    """Return Markdown that ends what it began: a reply cut in a block of code would swallow all that follows."""
    fence = ""
    for line in text.splitlines():
        mark = line.lstrip()[:3]
        if not fence and mark in _FENCES:
            fence = mark
        elif fence and line.strip() == fence:
            fence = ""
    return f"{text}\n{fence}" if fence else text
