"""The tree of turns: every version of everything that was said, and the one path that is on the screen.

A question follows a reply, a reply follows a question; a second reply to the same question is its sibling, so nothing
is ever overwritten. One rule keeps every path well formed: a question whose reply stayed empty (stopped before the
first token, or refused) is not continued. What is said next becomes its sibling, so the engine never sees two questions
in a row, nor an empty reply; the turns stay in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from tinychat.chats.turn import Turn
from tinychat.protocol import Message, TurnFinished


class Tree:
    """One conversation. Not thread-safe: it belongs to the UI thread."""

    def __init__(self, system: str = "", ids: Iterator[int] | None = None) -> None:
        """Start an empty conversation.

        Args:
            system: The system prompt, empty for none; it belongs to the root and so to every path.
            ids: Where turn ids come from; shared between conversations, no two turns of a session share an id.
        """
        self.system = system
        self.head: int | None = None
        """The last turn of the path on the screen."""
        self._ids = ids if ids is not None else count(1)
        self._turns: dict[int, Turn] = {}

    def __contains__(self, turn_id: int) -> bool:
        return turn_id in self._turns

    def __getitem__(self, turn_id: int) -> Turn:
        """Return a turn by its id.

        Raises:
            KeyError: No such turn.
        """
        return self._turns[turn_id]

    def __len__(self) -> int:
        """The number of turns, those off the path counted."""
        return len(self._turns)

    def ask(self, text: str) -> Turn:
        """Add what a person said, after the last turn that said something, and move the head to it."""
        return self._add(Turn(next(self._ids), self._last_said(), "user", text))

    def answer(self) -> Turn:
        """Add an empty reply to the question at the head and move the head to it.

        Raises:
            ValueError: The head is no question.
        """
        if self.head is None or self[self.head].role != "user":
            raise ValueError("There is no question to answer.")
        return self._add(Turn(next(self._ids), self.head, "assistant"))

    def regenerate(self, turn_id: int | None = None) -> Turn:
        """Add another, empty reply beside a reply, the one at the head if none is named, and move the head to it.

        The old one stays, with all that followed it.

        Raises:
            ValueError: It is no reply.
        """
        old = self.head if turn_id is None else turn_id
        if old is None or self[old].role != "assistant":
            raise ValueError("There is no reply to make again.")
        return self._add(Turn(next(self._ids), self[old].parent, "assistant"))

    def choose(self, turn_id: int) -> None:
        """Move the head to the end of the path through a turn: the newest of what followed it, and so on.

        Raises:
            KeyError: No such turn.
        """
        at = self[turn_id].turn_id
        newest = {turn.parent: turn.turn_id for turn in self._turns.values()}
        while at in newest:
            at = newest[at]
        self.head = at

    def finish(self, finished: TurnFinished, vocabulary: str) -> Turn:
        """Put what the engine made of a reply into its turn.

        Args:
            finished: The engine's last word on the reply.
            vocabulary: Hash of the vocabulary its ids belong to.

        Raises:
            KeyError: The turn is not of this conversation.
        """
        turn = replace(
            self[finished.turn_id],
            text=finished.text,
            thinking=finished.thinking,
            ids=finished.ids,
            vocabulary=vocabulary if finished.ids else "",
            reason=finished.reason,
            seed=finished.seed,
        )
        self._turns[turn.turn_id] = turn
        return turn

    def fail(self, turn_id: int, text: str = "", thinking: str = "") -> Turn:
        """End a reply of which the engine will say no more, keeping what it had said: text without ids."""
        turn = replace(self[turn_id], text=text, thinking=thinking, reason="failed")
        self._turns[turn_id] = turn
        return turn

    def versions(self, turn_id: int) -> tuple[Turn, ...]:
        """Return a turn and its siblings of the same role, in the order they were made."""
        turn = self[turn_id]
        return tuple(t for t in self._turns.values() if t.parent == turn.parent and t.role == turn.role)

    def path(self, turn_id: int | None = None) -> tuple[Turn, ...]:
        """Return the turns from the first to `turn_id`, or to the head."""
        at = self.head if turn_id is None else turn_id
        turns: list[Turn] = []
        while at is not None:
            turns.append(self[at])
            at = self[at].parent
        return tuple(reversed(turns))

    def messages_for(self, turn_id: int) -> tuple[Message, ...]:
        """Return what the engine is told to make the reply `turn_id`: the system prompt and every turn before it."""
        system = (Message("system", self.system),) if self.system else ()
        return system + tuple(turn.message() for turn in self.path(turn_id)[:-1])

    def _last_said(self) -> int | None:
        """The turn that what is said next follows: the head, or what stood before a question that got no reply."""
        at = self.head
        while at is not None:
            turn = self[at]
            if turn.role == "assistant" and turn.said:
                return at
            at = turn.parent
        return None

    def _add(self, turn: Turn) -> Turn:
        self._turns[turn.turn_id] = turn
        self.head = turn.turn_id
        return turn
