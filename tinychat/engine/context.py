"""What the caches hold: the ids of the tokens in them, in order, and the model that put them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinychat.models.base import Model
from tinychat.models.cache import slabs
from tinychat.models.probe import CLOSED, Probe


class Context:
    """The caches of one sequence, and the ids they hold. Ids are the only truth about a cache."""

    def __init__(self, model: Model, capacity: int, dtype: torch.dtype) -> None:
        """Reserve caches of `capacity` tokens."""
        self.model = model
        self.capacity = capacity
        self.caches: list[Any] = slabs(model.attention, capacity, dtype, model.device, model.kernels)
        self.ids: list[int] = []

    def reuse(self, prompt: Sequence[int]) -> int:
        """Keep the longest prefix of `prompt` that the caches hold, forget the rest, and return its length.

        At least one id of the prompt is left to compute, since only computing gives logits.
        """
        most = min(len(self.ids), len(prompt) - 1)
        same = next((i for i in range(most) if self.ids[i] != prompt[i]), most)
        self._trim(same)
        return same

    def forward(self, ids: Sequence[int], probe: Probe = CLOSED) -> torch.Tensor:
        """Append `ids` and return the logits after the last one, fp32 [V].

        Where the model raises, the caches are as before.
        """
        return self._append(ids, probe)[-1]

    def verify(self, ids: Sequence[int]) -> torch.Tensor:
        """Append `ids` and return the logits after each of them, fp32 [T, V]; as `forward` otherwise."""
        return self._append(ids, CLOSED, every_position=True)

    def trim(self, length: int) -> None:
        """Forget all ids from position `length` on, if there are any."""
        if length < len(self.ids):
            self._trim(length)

    def clear(self) -> None:
        """Forget everything."""
        self._trim(0)

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return sum(cache.nbytes for cache in self.caches)

    @property
    def used_bytes(self) -> int:
        """Bytes that hold tokens."""
        return sum(cache.used_bytes for cache in self.caches)

    def _append(self, ids: Sequence[int], probe: Probe, *, every_position: bool = False) -> torch.Tensor:
        try:
            tensor = torch.tensor(ids, dtype=torch.long, device=self.model.device)
            logits = self.model.forward(tensor, self.caches, probe, every_position=every_position)
        except BaseException:
            self._trim(len(self.ids))
            raise
        self.ids.extend(ids)
        return logits

    def _trim(self, length: int) -> None:
        del self.ids[length:]
        for cache in self.caches:
            cache.trim(min(length, cache.length))
