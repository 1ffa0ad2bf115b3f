"""Speculation: guess the next tokens cheaply, and have the model check all of them in one pass.

A step of one token reads every weight for one row of activations; a few rows more cost little beside that. So the ids
that are guessed to follow are appended together with the token that was drawn, and the model gives logits after each.
Each position is then drawn as ever: one draw, the settings and penalties of that token. While the drawn token is the
guessed one, the logits after it are at hand already; at the first that isn't, the rest is forgotten. A guess therefore
changes how fast tokens come and never which (Leviathan et al. 2023, arXiv:2211.17192, accept by another rule, which
keeps the distribution alone; with this one a seed gives the same reply with and without).

The logits of k + 1 rows and those of one row differ by rounding: in fp32 by a few millionths, in bf16 by up to two of
its steps, so that there a token may differ where the best two lie that close (0.25 for logits of 16 to 32).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from tinychat.engine.context import Context

LONGEST: Final = 3
"""Tokens of the stretches that prompt lookup has an index of."""
SHORTEST: Final = 1
_CANDIDATES: Final = 16
"""Latest occurrences of a stretch that are compared by what stands before them."""
_COMPARED: Final = 64
"""Tokens that are compared at most."""
_LEAST_REACH: Final = 2
"""Tokens drafted after a pass that went wrong."""
_LONGEST_WAIT: Final = 5
"""Failures in a row after which the wait doubles no more: 31 tokens."""
_CHUNK: Final = 256
"""Tokens that a draft model reads at once."""


class Proposer(Protocol):
    """What guesses."""

    NAME: str
    """How results name it: lookup, draft."""

    def propose(self, ids: Sequence[int], count: int) -> list[int]:
        """Return at most `count` ids that may follow `ids`, which only grow from call to call; or none."""


class PromptLookup:
    """Guesses that a stretch of tokens goes on as it did the last time (Saxena 2023, prompt lookup decoding)."""

    NAME = "lookup"

    def __init__(self) -> None:
        """Begin with an empty index."""
        self._after: dict[tuple[int, ...], deque[int]] = {}
        """Each stretch of `SHORTEST` to `LONGEST` ids -> where its latest occurrences go on, the latest first."""
        self._indexed = 0

    def propose(self, ids: Sequence[int], count: int) -> list[int]:
        """Return what followed the latest of the earlier places where most of what stands before it is the same.

        Among the places that end as `ids` do, the one that agrees longest backwards is the best guess: in a text that
        says "out, and" and "out. She" in turn, the last three words alone don't tell which of them is next.
        """
        for end in range(self._indexed + 1, len(ids)):
            for length in range(SHORTEST, min(LONGEST, end) + 1):
                places = self._after.setdefault(tuple(ids[end - length : end]), deque(maxlen=_CANDIDATES))
                places.appendleft(end)
        self._indexed = max(self._indexed, len(ids) - 1)
        for length in range(min(LONGEST, len(ids)), SHORTEST - 1, -1):
            if found := self._after.get(tuple(ids[-length:])):
                at = max(found, key=lambda place: _agreeing(ids, place))
                return list(ids[at : at + count])
        return []


def _agreeing(ids: Sequence[int], place: int) -> int:
    """Return how many ids before `place` are those before the end."""
    most = min(place, _COMPARED)
    return next((n for n in range(most) if ids[place - 1 - n] != ids[-1 - n]), most)


class DraftModel:
    """Guesses what a smaller model of the same vocabulary would say, greedily."""

    NAME = "draft"

    def __init__(self, context: Context, vocabulary: int) -> None:
        """Guess with a model.

        Args:
            context: Its caches, which follow the conversation by ids.
            vocabulary: Ids the large model knows; files pad their tables to different sizes.
        """
        self._context = context
        context.most_kept = 0  # drafts that were refused are of no use
        self._vocabulary = vocabulary

    def propose(self, ids: Sequence[int], count: int) -> list[int]:
        """Return the best next ids, none where its context is full.

        Of a long conversation it reads a chunk a call and guesses nothing yet, so that nobody waits for it.
        """
        count = min(count, self._context.capacity - len(ids))
        if count < 1:
            return []
        held = self._context.reuse(ids)
        logits = self._context.forward(ids[held : held + _CHUNK])
        if held + _CHUNK < len(ids):
            return []
        guessed: list[int] = []
        while (best := int(logits.argmax())) < self._vocabulary:
            guessed.append(best)
            if len(guessed) == count:
                break
            logits = self._context.forward([best])
        return guessed


class Speculation:
    """The guesses of one reply, how they went, and so how far ahead the next ones reach.

    A pass of several rows costs up to twice one of one row, so that a single accepted token pays for it. After a pass
    without one, the next guess waits: 1 token, after another failure 3, then 7, 15, 31. Where nothing is ever accepted,
    that is a pass in 32. The reach is twice what the last pass accepted.
    """

    def __init__(self, proposer: Proposer) -> None:
        """Start a reply."""
        self.proposer = proposer
        self.drafted = 0
        """Tokens guessed so far; those that the end of the reply left unjudged are not counted."""
        self.accepted = 0
        """Those of them that were drawn."""
        self._guessed: deque[int] = deque()
        self._kept = 0
        self._reach: int | None = None
        self._failures = 0
        self._wait = 0

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        """Return at most `most` ids that may follow `ids`; they are judged by the tokens that are drawn next."""
        if most < 1:
            return []
        if self._wait:
            self._wait -= 1
            return []
        guessed = self.proposer.propose(ids, most if self._reach is None else min(most, self._reach))
        self._guessed, self._kept = deque(guessed), 0
        return guessed

    def judge(self, token_id: int) -> bool:
        """Tell whether the token that was drawn is the one that was guessed; if not, later guesses are dropped."""
        if not self._guessed:
            return False
        agrees = self._guessed[0] == token_id
        if agrees:
            self._guessed.popleft()
            self._kept += 1
            self.accepted += 1
            self.drafted += 1
        else:
            self.drafted += len(self._guessed)
            self._guessed.clear()
        if not self._guessed:
            self._plan()
        return agrees

    def _plan(self) -> None:
        """Decide after a pass how soon the next one is, and how far it reaches."""
        self._failures = 0 if self._kept else min(self._failures + 1, _LONGEST_WAIT)
        self._wait = 2**self._failures - 1
        self._reach = max(_LEAST_REACH, 2 * self._kept)
