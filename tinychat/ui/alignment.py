"""Two replies side by side, token for token: which tokens cover the same bytes, and where the texts part.

Vocabularies cut a text differently, so that nothing but the bytes can tell which tokens belong together.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinychat.ui.reply_tokens import ReplyTokens

_ENDED = ("eos", "stop")
"""Endings that the model chose: where the other reply goes on, they are a difference."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """As few tokens of both replies as cover the same bytes; after the first difference, one of each, in order."""

    first: tuple[int, int]
    """The tokens of the first reply: from the one index up to, not with, the other."""
    second: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two replies part."""

    tokens: tuple[int, int]
    """Index of each reply's first token that covers other bytes; the number of its tokens where it ends there."""
    byte: int
    """How many bytes the tokens before it cover."""


class Alignment:
    """Follows two replies as they grow."""

    def __init__(self, first: ReplyTokens, second: ReplyTokens) -> None:
        """Begin before their first tokens."""
        self.replies = (first, second)
        self.difference: Difference | None = None
        """None as long as they cover the same bytes."""
        self.stretches: list[Stretch] = []
        """Those that are complete."""
        self._start = [0, 0]
        """Index of the first token of the stretch that is being looked at."""
        self._next = [0, 0]
        """Index of the next token to look at."""
        self._data = [b"", b""]
        """What is left of the tokens from `_start` on to compare: nothing, or what one of them is ahead by."""
        self._byte = self._covered = 0

    def update(self) -> bool:
        """Look at the tokens that have come; return whether the two part there."""
        before = self.difference
        while self.difference is None and self._look():
            pass
        return self.difference is not before

    def _look(self) -> bool:
        """Compare what there is, or take the next token of the reply that is behind; return whether there was one."""
        if all(self._data):
            self._compare()
            return True
        behind = [side for side in (0, 1) if not self._data[side]]
        for side in behind:
            if self._next[side] < self.known(side):
                self._data[side] = self.replies[side].tokens[self._next[side]].piece
                self._next[side] += 1
                return True
        if any(self._data) and self._chose_to_end(behind[0]):
            self._part()
            return True
        return False

    def known(self, side: int) -> int:
        """Return how many tokens of a reply are part of its text, as far as that is known.

        The token that ends a reply has no text. Only once it is over it can be told from one whose text is held back.
        """
        reply = self.replies[side]
        count = len(reply.tokens)
        if reply.finished is not None:
            return count - reply.ended
        if count and not (reply.tokens[-1].text or reply.tokens[-1].thinking):
            return count - 1
        return count

    def rows(self) -> int:
        """Return how many stretches there are, those after the difference or after the end of one reply too."""
        return len(self.stretches) + self._after()

    def row(self, number: int) -> Stretch:
        """Return one of them."""
        if number < len(self.stretches):
            return self.stretches[number]
        past = number - len(self.stretches)
        first, second = (
            (min(start + past, self.known(side)), min(start + past + 1, self.known(side)))
            for side, start in enumerate(self._start)
        )
        return Stretch(first, second)

    def _after(self) -> int:
        if self.difference is None and all(reply.finished is None for reply in self.replies):
            return 0
        return max(self.known(side) - start for side, start in enumerate(self._start))

    def _compare(self) -> None:
        """Take off what both have; where that is all of both, the stretch is complete."""
        size = min(map(len, self._data))
        if self._data[0][:size] != self._data[1][:size]:
            self._part()
            return
        self._data = [data[size:] for data in self._data]
        self._covered += size
        if not any(self._data):
            self.stretches.append(Stretch((self._start[0], self._next[0]), (self._start[1], self._next[1])))
            self._start = self._next[:]
            self._byte = self._covered

    def _part(self) -> None:
        self.difference = Difference((self._start[0], self._start[1]), self._byte)

    def _chose_to_end(self, side: int) -> bool:
        """Whether the model ended a reply here."""
        finished = self.replies[side].finished
        return finished is not None and finished.reason in _ENDED
