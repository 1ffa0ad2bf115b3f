"""How much each earlier token was attended to where a token was decided: what every head gave, kept of one token.

A head's weights are the softmax over the positions it sees: Vaswani et al. 2017, arXiv:1706.03762.
"""

from __future__ import annotations

from typing import Final

import torch

from tinychat.engine.explaining import ids_before
from tinychat.engine.loading import Session
from tinychat.errors import TinychatError
from tinychat.models.probe import Probe, Tapped
from tinychat.protocol import Attend, Attended

MOST_BYTES: Final = 64 * 2**20
"""Of weights that are kept. Where all heads take more, only those of the layer asked about are, and another layer costs
another run of the model."""


class Patterns(Probe):
    """The weights of all heads at the last position of a pass, and at each position the largest of them."""

    rows = 1

    def __init__(self, layers: int, asked: int | None = None) -> None:
        """Listen to all layers; `asked` is kept in any case."""
        self._layers = {f"blocks.{layer}.attn.hook_pattern": layer for layer in range(layers)}
        super().__init__(self._layers)
        self._asked = asked
        self.ids: list[int] = []
        """What was run."""
        self.heads = 0
        """Query heads of a layer."""
        self.of_layer: dict[int, torch.Tensor] = {}
        """Layer to the weights of its heads, fp32 [H, S]."""
        self.largest = torch.empty(0)
        """Over all layers and heads, fp32 [S]."""
        self.largest_head = torch.empty(0, dtype=torch.int32)
        """Whose they are, layer * H + head, int32 [S]."""

    def __call__(self, name: str, tapped: Tapped) -> None:
        """Take in the weights of a layer."""
        if (layer := self._layers.get(name)) is None:
            return
        weights = (tapped if isinstance(tapped, torch.Tensor) else tapped())[:, -1]  # [H, S]
        self.heads = len(weights)
        largest, head = weights.max(0)
        head = (head + layer * self.heads).to(torch.int32)
        if layer:
            more = largest > self.largest
            largest, head = torch.where(more, largest, self.largest), torch.where(more, head, self.largest_head)
        self.largest, self.largest_head = largest, head
        if layer == self._asked or weights.nbytes * len(self._layers) <= MOST_BYTES:
            self.of_layer[layer] = weights

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(tensor.nbytes for tensor in (*self.of_layer.values(), self.largest, self.largest_head))

    def row(self, layer: int | None, head: int | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return weights, fp32 [S]: of a head, the mean of a layer's, or the largest of all; and whose the largest of
        several are, as in `largest_head`."""
        if layer is None:
            return self.largest, self.largest_head
        weights = self.of_layer[layer]
        if head is None:
            return weights.mean(0), weights.argmax(0) + layer * self.heads
        return weights[head], None


@torch.inference_mode()
def attend(session: Session, command: Attend) -> Attended:
    """Answer `Attend`: run the model once more at the place that decided a token, unless what was kept of the last run
    has the answer."""
    turn_id, index, layer, head = command.turn_id, command.index, command.layer, command.head
    model = session.context.model
    try:
        ids = ids_before(session, turn_id, index)
        if layer is not None and not 0 <= layer < len(model.attention):
            raise TinychatError(f"The model has {len(model.attention)} layers; there is none of number {layer}.")
        patterns = session.patterns
        if patterns is None or patterns.ids != ids or (layer is not None and layer not in patterns.of_layer):
            session.patterns = None
            patterns = Patterns(len(model.attention), layer)
            session.context.look(ids, patterns)
            patterns.ids = ids
            session.patterns = patterns
        if layer is not None and head is not None and not 0 <= head < patterns.heads:
            raise TinychatError(f"A layer has {patterns.heads} heads; there is none of number {head}.")
    except TinychatError as error:
        return Attended(command.request_id, turn_id, index, layer, head, problem=error.summary)
    weights, largest = patterns.row(layer, head)
    seen = model.attention if layer is None else model.attention[layer : layer + 1]
    windows = [spec.window for spec in seen]
    window = None if None in windows else max(window for window in windows if window is not None)
    return Attended(
        command.request_id,
        turn_id,
        index,
        layer,
        head if layer is not None else None,
        tuple(weights.tolist()),
        0 if window is None else max(0, len(ids) - window),
        window,
        () if largest is None else tuple(divmod(number, patterns.heads) for number in largest.tolist()),
        layers=len(model.attention),
        heads=patterns.heads,
        kv_heads=seen[0].kv_heads,
    )
