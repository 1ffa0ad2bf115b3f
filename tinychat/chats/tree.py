"""The tree of turns: every version of everything that was said, and the one path that is on the screen.

A question follows a reply, a reply follows a question; what is said in place of another is its sibling, so nothing is
ever overwritten: another answer, an edit of either side, a reply that goes on from where one was cut. Every action can
be undone and done again, and undoing deletes nothing, either.

One rule keeps every path well formed: a question whose reply stayed empty (stopped before the first token, or refused)
is not continued. What is said next becomes its sibling, so the engine never sees two questions in a row, nor an empty
reply; the turns stay in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from tinychat.chats.history import Action, History
from tinychat.chats.turn import Ending, Role, Turn
from tinychat.protocol import Message, SamplerSettings, TurnFinished


@dataclass(frozen=True, slots=True)
class TreeState:
    """All of a tree as plain data: what is written to disk, and read back to the same tree."""

    system: str = ""
    turns: tuple[Turn, ...] = ()
    """In the order they were added: parents before what follows them."""
    head: int | None = None
    actions: tuple[Action, ...] = ()
    done: int = 0
    """How many of the actions are in force."""

    def renumbered(self, ids: Iterator[int]) -> TreeState:
        """Return the same with other turn ids, taken from `ids` in the turns' order."""
        new: dict[int | None, int | None] = {turn.turn_id: next(ids) for turn in self.turns}
        turns = []
        for turn in self.turns:
            at = new[turn.turn_id]
            assert at is not None
            turns.append(replace(turn, turn_id=at, parent=new.get(turn.parent), origin=new.get(turn.origin)))
        actions = tuple(Action(new.get(a.before), new.get(a.after), new.get(a.removed)) for a in self.actions)
        return replace(self, turns=tuple(turns), head=new.get(self.head), actions=actions)


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
        self._history = History()

    @classmethod
    def restored(cls, state: TreeState, ids: Iterator[int] | None = None) -> Tree:
        """Return the tree of a state, its turns under new ids. A reply that was being made is marked as cut."""
        tree = cls(state.system, ids)
        state = state.renumbered(tree._ids)
        for turn in state.turns:
            cut = turn.role == "assistant" and turn.reason is None
            tree._turns[turn.turn_id] = replace(turn, reason="cut") if cut else turn
        tree.head = state.head
        tree._history = History(state.actions, state.done)
        return tree

    def state(self) -> TreeState:
        """Return all of it as plain data."""
        turns = tuple(self._turns.values())
        return TreeState(self.system, turns, self.head, self._history.actions, self._history.done)

    def __contains__(self, turn_id: int) -> bool:
        return turn_id in self._turns

    def __getitem__(self, turn_id: int) -> Turn:
        """Return a turn by its id.

        Raises:
            KeyError: No such turn.
        """
        return self._turns[turn_id]

    def __iter__(self) -> Iterator[Turn]:
        """Iterate over all turns in the order they were added, those that were taken away counted."""
        return iter(self._turns.values())

    def __len__(self) -> int:
        """The number of turns, those off the path counted."""
        return len(self._turns)

    # What is said

    def ask(self, text: str) -> Turn:
        """Add what a person said, after the last turn that said something, and move the head to it."""
        return self._add(self._last_said(), "user", text=text)

    def answer(self) -> Turn:
        """Add an empty reply to the question at the head and move the head to it.

        Raises:
            ValueError: The head is no question.
        """
        if self.head is None or self[self.head].role != "user":
            raise ValueError("There is no question to answer.")
        return self._add(self.head, "assistant")

    def regenerate(self, turn_id: int | None = None, *, origin: int | None = None) -> Turn:
        """Add another, empty reply beside a reply, the one at the head if none is named, and move the head to it.

        The old one stays, with all that followed it.

        Args:
            turn_id: The reply.
            origin: The version that the new one begins as; None: it begins anew.

        Raises:
            ValueError: It is no reply.
        """
        old = self.head if turn_id is None else turn_id
        if old is None or self[old].role != "assistant":
            raise ValueError("There is no reply to make again.")
        return self._add(self[old].parent, "assistant", origin=origin)

    def edit(self, turn_id: int, text: str) -> Turn:
        """Add a version of a turn that says `text`, of either side, and move the head to it.

        The old one stays, with all that followed it. A reply that a person wrote has no ids.

        Raises:
            KeyError: No such turn, or it was taken away.
            ValueError: A reply can't be edited to nothing, nor while it is being made.
        """
        old = self._present_turn(turn_id)
        if old.role == "user":
            return self._add(old.parent, "user", text=text, origin=turn_id)
        if old.reason is None:
            raise ValueError("The reply is still being made.")
        if not (text or old.thinking):
            raise ValueError("A reply has to say something.")
        written: dict[str, Any] = {"text": text, "thinking": old.thinking, "reason": "edited"}
        return self._add(old.parent, "assistant", origin=turn_id, **written)

    def finish(self, finished: TurnFinished, vocabulary: str, model: str = "", weights: str = "") -> Turn:
        """Put what the engine made of a reply into its turn.

        Args:
            finished: The engine's last word on the reply.
            vocabulary: Hash of the vocabulary its ids belong to.
            model: Name of the model that made it.
            weights: Fingerprint of that model's files.

        Raises:
            KeyError: The turn is not of this conversation.
        """
        return self._put(
            finished.turn_id,
            text=finished.text,
            thinking=finished.thinking,
            ids=finished.ids,
            vocabulary=vocabulary if finished.ids else "",
            reason=finished.reason,
            seed=finished.seed,
            model=model,
            weights=weights,
            forced=finished.forced,
        )

    def fail(self, turn_id: int, text: str = "", thinking: str = "", reason: Ending = "failed") -> Turn:
        """End a reply of which the engine will say no more, keeping what it had said: text without ids."""
        return self._put(turn_id, text=text, thinking=thinking, reason=reason)

    def drawn_by(self, turn_id: int, index: int, settings: SamplerSettings) -> None:
        """Note what a reply's tokens are drawn by, from token `index` on."""
        known = tuple(each for each in self[turn_id].settings if each[0] < index)
        same = bool(known) and known[-1][1] == settings
        self._put(turn_id, settings=known if same else (*known, (index, settings)))

    # Where the conversation stands

    def choose(self, turn_id: int) -> None:
        """Move the head to the end of the path through a turn: the newest of what followed it, and so on.

        Raises:
            KeyError: No such turn, or it was taken away.
        """
        self._move(self._end_of(self._present_turn(turn_id).turn_id))

    def remove(self, turn_id: int) -> None:
        """Take a turn away, with all that follows it: it is in no version and on no path until that is undone.

        Where it was on the path, the newest of its versions takes its place, or the path ends before it.

        Raises:
            KeyError: No such turn, or it was taken away already.
        """
        turn, head = self._present_turn(turn_id), self.head
        if any(each.turn_id == turn_id for each in self.path()):
            left = [each.turn_id for each in self._siblings(turn) if each.turn_id != turn_id]
            head = self._end_of(left[-1]) if left else turn.parent
        self._history.add(Action(self.head, head, turn_id))
        self.head = head

    def undo(self) -> bool:
        """Take the last action back; return whether there was one."""
        action = self._history.undo()
        if action is not None:
            self.head = action.before
        return action is not None

    def redo(self) -> bool:
        """Do again what was taken back last; return whether there was something."""
        action = self._history.redo()
        if action is not None:
            self.head = action.after
        return action is not None

    @property
    def can_undo(self) -> bool:
        """Whether something was done."""
        return self._history.done > 0

    @property
    def can_redo(self) -> bool:
        """Whether something was undone, and nothing done since."""
        return self._history.done < len(self._history.actions)

    def fork(self, turn_id: int) -> Tree:
        """Return a new conversation that begins with the path to a turn, sharing its turns; this one stays as it is."""
        tree = Tree(self.system, self._ids)
        for turn in self.path(turn_id):
            tree._turns[turn.turn_id] = replace(turn, origin=None)  # the other versions stay behind
        tree.head = turn_id
        return tree

    # What there is

    def siblings(self, turn_id: int) -> tuple[Turn, ...]:
        """Return a turn and what was said in its very place, in the order they were made."""
        return self._siblings(self[turn_id])

    def versions(self, turn_id: int) -> tuple[Turn, ...]:
        """Return what a person can have in the place of a turn, itself included.

        Of a question, its edits. Of a reply, all replies to its question and to that one's edits, question by question;
        replies to another question that said nothing are left out.
        """
        turn = self[turn_id]
        if turn.role == "user" or turn.parent is None:
            return self._siblings(turn)
        questions = [each.turn_id for each in self._siblings(self[turn.parent])]
        replies = [each for each in self._present() if each.role == "assistant" and each.parent in questions]
        kept = (each for each in replies if each.said or each.parent == turn.parent)
        return tuple(sorted(kept, key=lambda each: questions.index(each.parent or 0)))

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

    def _add(self, parent: int | None, role: Role, **what: Any) -> Turn:
        turn = Turn(next(self._ids), parent, role, **what)
        self._turns[turn.turn_id] = turn
        if role == "assistant" and self.head == parent and self._just_asked(parent):
            self.head = turn.turn_id
            self._history.extend(turn.turn_id)  # a question and its first reply are one action
        else:
            self._move(turn.turn_id)
        return turn

    def _just_asked(self, question: int | None) -> bool:
        """Whether the last thing that was done is that this was asked."""
        done = self._history.actions[: self._history.done]
        return bool(done) and not self.can_redo and done[-1].after == question and done[-1].removed is None

    def _move(self, head: int | None) -> None:
        if head != self.head:
            self._history.add(Action(self.head, head))
            self.head = head

    def _put(self, turn_id: int, **changes: Any) -> Turn:
        self._turns[turn_id] = turn = replace(self[turn_id], **changes)
        return turn

    def _present_turn(self, turn_id: int) -> Turn:
        """Return a turn that was not taken away, nor follows one that was.

        Raises:
            KeyError: There is none such.
        """
        if any(turn.turn_id in self._history.removed for turn in self.path(turn_id)):
            raise KeyError(turn_id)
        return self[turn_id]

    def _present(self) -> Iterator[Turn]:
        """Yield the turns that were not taken away, nor follow one that was."""
        removed = self._history.removed
        gone: set[int | None] = set()
        for turn in self:
            if turn.turn_id in removed or turn.parent in gone:
                gone.add(turn.turn_id)
            else:
                yield turn

    def _siblings(self, turn: Turn) -> tuple[Turn, ...]:
        return tuple(t for t in self._present() if t.parent == turn.parent and t.role == turn.role)

    def _end_of(self, turn_id: int) -> int:
        newest = {turn.parent: turn.turn_id for turn in self._present()}
        while turn_id in newest:
            turn_id = newest[turn_id]
        return turn_id
