"""The logit lens: what the model would have said after each layer, had that been its last.

The final norm and the head read the residual stream after every layer. nostalgebraist 2020, "interpreting GPT: the
logit lens"; that early layers need not speak the head's language: Belrose et al. 2023, arXiv:2303.08112.
"""

from __future__ import annotations

from typing import Final

import torch

from tinychat.engine.explaining import id_of, ids_before
from tinychat.engine.loading import Session
from tinychat.errors import TinychatError
from tinychat.models.base import Model
from tinychat.models.probe import Probe, Tapped
from tinychat.protocol import Alternative, Lens, Lensed, LensLayer

BEST: Final = 5
"""Tokens that are told of each layer."""
_AT_ONCE: Final = 16
"""Layers whose rows of logits are there at the same time."""


class ResidualProbe(Probe):
    """Keeps the residual stream after each layer, at the last position of a pass alone."""

    def __init__(self, layers: int) -> None:
        """Listen to every layer."""
        self._order = [f"blocks.{layer}.hook_resid_post" for layer in range(layers)]
        super().__init__(self._order)

    def __call__(self, name: str, tapped: Tapped) -> None:
        """Keep a copy, fp32 [C]."""
        if self.names is not None and name in self.names:
            tensor = tapped if isinstance(tapped, torch.Tensor) else tapped()
            self.seen[name] = tensor[-1].to(torch.float32, copy=True)

    @property
    def streams(self) -> torch.Tensor:
        """What was kept, fp32 [layers, C]."""
        return torch.stack([self.seen[name] for name in self._order])


@torch.inference_mode()
def lens(session: Session, command: Lens) -> Lensed:
    """Answer `Lens`: run the model once more at the place that decided a token, and read it off after each layer."""
    turn_id, index = command.turn_id, command.index
    probe = ResidualProbe(session.info.layers)
    try:
        session.context.look(ids_before(session, turn_id, index), probe)
    except TinychatError as error:
        return Lensed(command.request_id, turn_id, index, problem=error.summary)
    chosen, bytes_of = id_of(session, turn_id, index), session.opened.tokenizer.bytes_of
    layers: list[LensLayer] = []
    for streams in probe.streams.split(_AT_ONCE):
        for row in lens_logits(session.context.model, streams):
            shares = row.softmax(-1)
            values, ids = shares.topk(min(BEST, len(row)))
            best = zip(ids.tolist(), values.tolist(), strict=True)
            layers.append(
                LensLayer(
                    tuple(Alternative(token_id, bytes_of(token_id), share) for token_id, share in best),
                    None if chosen is None else int((row > row[chosen]).sum()) + 1,
                    None if chosen is None else float(shares[chosen]),
                )
            )
    return Lensed(command.request_id, turn_id, index, chosen, tuple(layers))


def lens_logits(model: Model, streams: torch.Tensor) -> torch.Tensor:
    """Return what the model's own final norm and head make of residual streams fp32 [n, C]: logits, fp32 [n, V]."""
    return model.logits(model.normed(streams.clone(), None))
