"""Two replies that are made on one thread, token by token in turn, and how far apart they are where each was chosen."""

from __future__ import annotations

from typing import Final

import torch

from tinychat.engine.divergence import divergences
from tinychat.engine.reply import Reply
from tinychat.protocol import Divergence

KEPT_ROWS: Final = 8
"""Rows of logits that a reply keeps to be compared: by so many tokens one may have begun before the other."""


class Comparison:
    """Keeps two replies in step, and compares the distributions that their tokens were drawn from.

    That is done only as long as both models have read the same ids of the same vocabulary: what comes after another
    text is another distribution anyway.
    """

    def __init__(self, first: Reply, second: Reply) -> None:
        """Begin before the first token of either."""
        self._replies = (first, second)
        self._same = first.vocabulary == second.vocabulary and first.prompt_ids == second.prompt_ids
        self._next = 0
        """Index of the next token to compare."""

    def of(self, first: Reply, second: Reply) -> bool:
        """Whether these are the replies."""
        return self._replies[0] is first and self._replies[1] is second

    def holds(self, reply: Reply) -> bool:
        """Whether a reply has to wait for the other one, which has fewer tokens and is still being made."""
        first, second = self._replies
        other = second if reply is first else first
        return reply in self._replies and other.reason is None and reply.tokens > other.tokens

    @property
    def over(self) -> bool:
        """Whether both have ended."""
        return all(reply.reason is not None for reply in self._replies)

    def give_up(self) -> None:
        """Compare nothing more."""
        self._same = False

    def look(self) -> list[Divergence]:
        """Return KL(first || second) for the tokens that both have chosen since the last call."""
        found: list[Divergence] = []
        first, second = self._replies
        while self._same and self._next < min(first.tokens, second.tokens):
            row, other = first.row(self._next), second.row(self._next)
            if row is not None and other is not None:
                found.append(Divergence(first.turn_id, self._next, divergence(row, other)))
            self._same = first.token_id(self._next) == second.token_id(self._next)
            self._next += 1
        return found


@torch.inference_mode()
def divergence(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return KL(first || second), in nats, of logits, fp32 [V] each.

    Some models of one vocabulary have a few rows more than it has tokens, so that their matrices are round numbers
    wide; those that only one of them has are left out.
    """
    size = min(len(first), len(second))
    return max(float(divergences(first[:size], second[:size])), 0.0)
