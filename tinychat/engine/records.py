"""What is kept of each token of each turn, so that it can be told afterwards why it was said.

A row of logits has as many numbers as the vocabulary; the state that the head made them of has as many as the model is
wide, a hundredth of them, and gives them again exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tinychat.engine.prompt import RenderedPrompt
from tinychat.engine.sampling import Choice

MOST_BYTES: Final = 64 * 2**20
"""Of states and prompts together. Where there are more, the oldest turns go first."""
ID_BYTES: Final = 40
"""Of an id of a prompt: a place in a tuple, and a number."""


@dataclass(slots=True)
class TurnRecord:
    """A turn: what it was fed, and its tokens."""

    prompt: RenderedPrompt
    tokens: list[Choice] = field(default_factory=list)
    first: int = 0
    """The first token whose states are kept: of a turn that is too long by itself, its beginning goes."""

    @property
    def ids(self) -> list[int]:
        """Ids of the reply so far."""
        return [token.token_id for token in self.tokens]


class Records:
    """The turns since the model was loaded, oldest first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Keep nothing yet."""
        self._most = most_bytes
        self._turns: dict[int, TurnRecord] = {}
        self._uses: dict[int, int] = {}
        """How many tokens share each tensor of states, by its id."""
        self.nbytes = 0
        """Bytes of states and prompts; states that turns share are counted once."""

    def begin(self, turn_id: int, prompt: RenderedPrompt) -> TurnRecord:
        """Return the empty record of a turn; an older one of the same number is forgotten."""
        if turn_id in self._turns:
            self._forget(turn_id)
        self._turns[turn_id] = turn = TurnRecord(prompt)
        self.nbytes += prompt_bytes(prompt)
        self._make_room(turn)
        return turn

    def get(self, turn_id: int) -> TurnRecord | None:
        """Return the record of a turn, if there is one."""
        return self._turns.get(turn_id)

    @property
    def newest_first(self) -> tuple[TurnRecord, ...]:
        """All records there are."""
        return tuple(reversed(self._turns.values()))

    def add(self, turn: TurnRecord, token: Choice) -> None:
        """Keep a token of the newest turn; let go of what is oldest where that is too much."""
        turn.tokens.append(token)
        if token.states is not None:
            uses = self._uses.get(id(token.states), 0)
            self._uses[id(token.states)] = uses + 1
            if not uses:
                self.nbytes += token.states.nbytes
                self._make_room(turn)

    def shared(self, branch_of: int | None, prompt: RenderedPrompt, forced: Sequence[int]) -> list[Choice]:
        """Return the tokens of an earlier turn that a reply which begins with `forced` has in common with it, and the
        one after them, which was decided by the same numbers; as far as their states are kept.
        """
        turn = None if branch_of is None else self._turns.get(branch_of)
        found: list[Choice] = []
        if turn is None or turn.prompt.ids != prompt.ids:
            return found
        for token, token_id in zip(turn.tokens, forced, strict=False):
            if token.states is None:
                break
            found.append(token)
            if token.token_id != token_id:
                break
        return found

    def _make_room(self, newest: TurnRecord) -> None:
        while self.nbytes > self._most and len(self._turns) > 1:
            self._forget(next(iter(self._turns)))
        while self.nbytes > self._most and newest.first < len(newest.tokens):
            token = newest.tokens[newest.first]
            newest.tokens[newest.first] = replace(token, states=None)
            newest.first += 1
            self._release(token)

    def _forget(self, turn_id: int) -> None:
        turn = self._turns.pop(turn_id)
        self.nbytes -= prompt_bytes(turn.prompt)
        for token in turn.tokens:
            self._release(token)

    def _release(self, token: Choice) -> None:
        if token.states is None:
            return
        self._uses[id(token.states)] -= 1
        if not self._uses[id(token.states)]:
            del self._uses[id(token.states)]
            self.nbytes -= token.states.nbytes


def prompt_bytes(prompt: RenderedPrompt) -> int:
    """Return the bytes that keeping a prompt takes."""
    return ID_BYTES * len(prompt.ids) + len(prompt.text)
