"""What was done to a conversation, in order, so that it can be undone and done again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a person did: it moved the head, added turns, took some away, or all of it.

    Turns that were added stay in the tree when it is undone; what is undone is where the conversation stands.
    """

    before: int | None
    """The head before it."""
    after: int | None
    """The head after it."""
    removed: int | None = None
    """The turn that was taken away, with all that follows it."""


class History:
    """A list of actions and how many of them are in force. Doing something new forgets what was undone."""

    def __init__(self, actions: Sequence[Action] = (), done: int | None = None) -> None:
        """Begin with `actions`, the first `done` of them in force (None: all)."""
        self._actions = list(actions)
        self._done = len(self._actions) if done is None else done

    @property
    def actions(self) -> tuple[Action, ...]:
        """All of them, those that were undone last."""
        return tuple(self._actions)

    @property
    def done(self) -> int:
        """How many are in force."""
        return self._done

    @property
    def removed(self) -> frozenset[int]:
        """The turns that were taken away."""
        return frozenset(a.removed for a in self._actions[: self._done] if a.removed is not None)

    def add(self, action: Action) -> None:
        """This was done now."""
        del self._actions[self._done :]
        self._actions.append(action)
        self._done += 1

    def extend(self, after: int) -> None:
        """What was done last went on: a question got its reply."""
        self._actions[self._done - 1] = replace(self._actions[self._done - 1], after=after)

    def undo(self) -> Action | None:
        """Take the last action back and return it; None where there is none."""
        if not self._done:
            return None
        self._done -= 1
        return self._actions[self._done]

    def redo(self) -> Action | None:
        """Do again what was taken back last, and return it; None where there is nothing."""
        if self._done == len(self._actions):
            return None
        self._done += 1
        return self._actions[self._done - 1]
