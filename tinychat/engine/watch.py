"""Who looks on while tokens are made: what generation asks, and who answers that nobody does."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tinychat.models.probe import CLOSED, Probe


class Watch:
    """Looks at nothing, and holds nothing up."""

    def probe(self, rows: int) -> Probe:
        """Return the taps of the pass that decides the next `rows` tokens."""
        del rows
        return CLOSED

    def holds(self, next_token: Callable[[], int]) -> bool:
        """Tell, before each token that is drawn, whether to wait; `next_token` finds out which one it would be."""
        del next_token
        return False

    def chosen_from(self, logits: torch.Tensor) -> None:
        """Take the logits, fp32 [V], that a token was chosen from; dictated ones have none."""
        del logits
