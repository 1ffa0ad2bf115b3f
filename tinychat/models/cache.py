"""The KV cache of one layer as a slab: reserved once, written in place, never moved. The oracle of `paged.py`.

A layer never sees the layout: it hands over its new queries, keys and values and gets the mix back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from tinychat.kernels import Kernels
from tinychat.models.rope import Rope, Rotary


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How one layer attends, and so what its cache holds."""

    kv_heads: int
    head_size: int
    scale: float
    """Of the scores."""
    rope: Rope | None = None
    """How positions turn queries and keys; None: not at all."""
    window: int | None = None
    """Positions a token sees, itself included; None: all."""
    softcap: float | None = None
    """Bends scores back; None: not."""


class Cache(Protocol):
    """Keys and values of one layer."""

    @property
    def length(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes reserved."""

    @property
    def used_bytes(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def attention(self) -> AttentionSpec: ...
    @property
    def rotary(self) -> Rotary | None: ...
    def read(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [K, end - start, D]."""

    def append_attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """Append the keys and values of T new tokens, and attend.

        Args:
            qkv: Activations [T, (H + 2 K) D]: queries, keys and values, not yet rotated.

        Returns:
            The mix of values, activations [T, H D].
        """

    def trim(self, length: int) -> None:
        """Forget all tokens from position `length` on."""


class SlabCache:
    """Keys and values as two tensors [K, capacity, D].

    The operating system commits their pages as they are first touched, so a large reservation costs nothing until it is
    used.
    """

    def __init__(
        self,
        attention: AttentionSpec,
        capacity: int,
        dtype: torch.dtype,
        device: str,
        kernels: Kernels,
        rotary: Rotary | None,
    ) -> None:
        """Reserve room for `capacity` tokens; `rotary` has the tables of the layer's rope."""
        self.length = 0
        self.capacity = capacity
        shape = attention.kv_heads, capacity, attention.head_size
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.attention = attention
        self._kernels = kernels
        self.rotary = rotary

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.keys.dtype

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def used_bytes(self) -> int:
        """Bytes that hold tokens."""
        return self.nbytes // self.capacity * self.length

    def append_attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """See `Cache`."""
        end = self.length + qkv.shape[0]
        assert end <= self.capacity, f"{end} tokens don't fit a cache of {self.capacity}"
        tables = None if self.rotary is None else self.rotary.tables
        mix = self._kernels.append_attend(qkv, self, self.length, tables, self.attention)
        self.length = end
        return mix

    def write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [T, K, D] of the positions from `start` on."""
        self.keys[:, start : start + len(keys)] = keys.transpose(0, 1)
        self.values[:, start : start + len(values)] = values.transpose(0, 1)

    def read(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [K, end - start, D]."""
        return self.keys[:, start:end], self.values[:, start:end]

    def trim(self, length: int) -> None:
        """Forget all tokens from position `length` on."""
        assert 0 <= length <= self.length, f"can't trim {self.length} tokens to {length}"
        self.length = length


def rotaries(layers: Sequence[AttentionSpec], capacity: int, device: str) -> dict[int, Rotary]:
    """Return the tables of each rope there is in `layers`, by its `id`: layers that turn alike share one."""
    ropes = {id(layer.rope): layer.rope for layer in layers if layer.rope is not None}
    return {key: Rotary(rope, capacity, device) for key, rope in ropes.items()}


def slabs(
    layers: Sequence[AttentionSpec], capacity: int, dtype: torch.dtype, device: str, kernels: Kernels
) -> list[SlabCache]:
    """Return an empty slab a layer."""
    tables = rotaries(layers, capacity, device)
    return [SlabCache(layer, capacity, dtype, device, kernels, tables.get(id(layer.rope))) for layer in layers]
