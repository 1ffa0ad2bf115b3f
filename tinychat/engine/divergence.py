"""How far two distributions of the next token are apart."""

from __future__ import annotations

import torch


def divergences(exact: torch.Tensor, ours: torch.Tensor) -> torch.Tensor:
    """Return KL(exact || ours) of each position, fp64 [...], in nats, of logits [..., V]: Kullback and Leibler 1951."""
    right, guess = exact.double().log_softmax(-1), ours.double().log_softmax(-1)
    # exp(-inf) is 0, and 0 (-inf - x) would be NaN.
    return (right.exp() * (right.clamp(min=-1e4) - guess.clamp(min=-1e4))).sum(-1)
