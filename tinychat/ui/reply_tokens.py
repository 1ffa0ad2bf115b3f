"""The tokens of a reply as the engine chose them: what every view of the glass box is drawn from."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from tinychat.protocol import PrefillProgress, Probed, Profiled, TokenEmitted, TurnFinished

_PROBES: Final = 64
"""Statistics of the layers that are kept, the latest: a token's are some 15 kB, and they can be asked for again."""
_PROFILES: Final = 32
"""Profiles that are kept, the latest."""


class ReplyTokens:
    """One reply, token by token, thinking and end id included, and which token a person looks at."""

    def __init__(self, turn_id: int, vocabulary: str = "", forced: int = 0, branch_of: int | None = None) -> None:
        """Begin without tokens.

        Args:
            turn_id: The reply.
            vocabulary: Hash of the vocabulary that its ids belong to.
            forced: How many of its first tokens are not drawn: all but the last repeat `branch_of`.
            branch_of: The reply that it branches off from, or goes on from.
        """
        self.turn_id = turn_id
        self.vocabulary = vocabulary
        self.forced = forced
        self.repeated = max(0, forced - 1)
        """How many of its first tokens are those of `branch_of`."""
        self.branch_of = branch_of
        self.tokens: list[TokenEmitted] = []
        self.focus: int | None = None
        """Index of the token that a person chose to look at; None follows the newest."""
        self.finished: TurnFinished | None = None
        self.prefill: PrefillProgress | None = None
        self.probes: dict[int, Probed] = {}
        """Index of a token to what happened in the layers, the latest last."""
        self.profiles: deque[Profiled] = deque(maxlen=_PROFILES)
        self._bits = 0.0
        self._measured = 0

    def add(self, tokens: Sequence[TokenEmitted]) -> None:
        """These were chosen."""
        self.tokens.extend(tokens)
        measured = [token.logprob for token in tokens if token.logprob is not None]
        self._bits -= sum(measured) / math.log(2)
        self._measured += len(measured)

    def keep_probe(self, probed: Probed) -> None:
        """Keep what happened in the layers at a token, and forget the oldest where there are too many."""
        self.probes.pop(probed.index, None)
        self.probes[probed.index] = probed
        while len(self.probes) > _PROBES:
            del self.probes[next(iter(self.probes))]

    @property
    def newest(self) -> int:
        """Index of the newest token; -1 while there is none."""
        return len(self.tokens) - 1

    @property
    def at(self) -> int:
        """Index of the token in focus; -1 while there is none."""
        return self.newest if self.focus is None else min(self.focus, self.newest)

    @property
    def ended(self) -> bool:
        """Whether the last token is the model's end id."""
        return self.finished is not None and self.finished.reason == "eos"

    @property
    def mean_surprise(self) -> float | None:
        """Mean of -log2 p over all tokens, in bits; None where no probabilities were told."""
        return self._bits / self._measured if self._measured else None

    @property
    def perplexity(self) -> float | None:
        """2 to the mean surprise: between how many equally likely tokens the model chose, in the geometric mean."""
        mean = self.mean_surprise
        return None if mean is None else 2.0 ** min(mean, 1000.0)

    def origin(self, index: int) -> str:
        """Say where a token came from, in one word or two."""
        if index < self.repeated:
            return "repeated"
        if index < self.forced:
            return "dictated"
        return "drafted, then drawn" if self.tokens[index].accepted else "drawn"


def surprise(token: TokenEmitted) -> float | None:
    """Return -log2 of the token's own probability, in bits (Shannon 1948)."""
    return None if token.logprob is None else max(0.0, -token.logprob / math.log(2))
