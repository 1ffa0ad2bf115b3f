"""The messages of a conversation as a chat template takes them, and what can be done where it doesn't take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tinychat.protocol import Message


@dataclass(frozen=True, slots=True)
class Content:
    """One text of one message."""

    message: Message
    index: int
    """Which message of the conversation it is, from 0."""
    thinking: bool = False

    @property
    def text(self) -> str:
        """What was said, or thought."""
        return self.message.thinking if self.thinking else self.message.text


@dataclass(frozen=True, slots=True)
class Turn:
    """One message for the template, made of the contents with these numbers."""

    role: str
    contents: tuple[int, ...]
    thinking: int | None = None


def turns_of(messages: Sequence[Message]) -> tuple[list[Content], list[Turn]]:
    """Return the contents of a conversation, numbered from 0, and a turn a message."""
    contents: list[Content] = []
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        thinking = None
        if message.thinking:
            thinking = len(contents)
            contents.append(Content(message, index, thinking=True))
        turns.append(Turn(message.role, (len(contents),), thinking))
        contents.append(Content(message, index))
    return contents, turns


def as_dictionaries(turns: Sequence[Turn], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the template gets, where content number i reads `texts[i]`."""
    written: list[dict[str, Any]] = []
    for turn in turns:
        said = "\n\n".join(texts[number] for number in turn.contents if texts[number])
        written.append({"role": turn.role, "content": said})
        if turn.thinking is not None:
            written[-1]["reasoning_content"] = texts[turn.thinking]
    return written


def with_system_folded(turns: Sequence[Turn]) -> list[Turn]:
    """Put each system prompt before what the user says next, for templates that have no place for one."""
    folded: list[Turn] = []
    waiting: tuple[int, ...] = ()
    for turn in turns:
        if turn.role == "system":
            waiting += turn.contents
        elif turn.role == "user" and waiting:
            folded.append(Turn("user", waiting + turn.contents))
            waiting = ()
        else:
            folded.append(turn)
    return [*folded, Turn("user", waiting)] if waiting else folded


def with_neighbours_joined(turns: Sequence[Turn]) -> list[Turn]:
    """Make one turn of several that follow each other in the same role, for templates that want the sides to alternate.

    Replies that think are left alone: each has its own thinking.
    """
    joined: list[Turn] = []
    for (role, thinks), group in groupby(turns, key=lambda turn: (turn.role, turn.thinking is not None)):
        same = list(group)
        joined += same if thinks else [Turn(role, tuple(number for turn in same for number in turn.contents))]
    return joined
