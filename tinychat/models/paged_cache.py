"""The cache of one sequence over the blocks of `paged.py`: what a model's layers append to and attend over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from tinychat.kernels import Kernels
from tinychat.models.cache import AttentionSpec, rotaries
from tinychat.models.paged import BLOCK, MARGIN, STEP, TILE, BlockPool, BlockTable
from tinychat.models.rope import Rotary

_TWICE: Final = {1: torch.int16, 2: torch.int32, 4: torch.int64}
"""Bytes of a number -> numbers of twice the size."""
_LARGEST: Final = 127
"""Of int8 codes."""


class PagedCache:
    """Keys and values of one layer of one sequence."""

    def __init__(
        self, attention: AttentionSpec, layer: int, table: BlockTable, kernels: Kernels, rotary: Rotary | None
    ) -> None:
        """Look at layer number `layer` of the table's pool."""
        self.length = 0
        self.attention = attention
        self.table = table
        self.keys, self.values = table.pool.keys[layer], table.pool.values[layer]
        self.scales = table.pool.scales[layer] if table.pool.scales else None
        self.rotary = rotary
        self.layer = layer
        self._kernels = kernels

    @property
    def capacity(self) -> int:
        """Most tokens of the sequence."""
        return self.table.capacity

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.keys.dtype

    @property
    def nbytes(self) -> int:
        """Bytes reserved, for all sequences together."""
        return self._block_bytes * self.table.pool.blocks

    @property
    def used_bytes(self) -> int:
        """Bytes of blocks that this sequence names."""
        return self._block_bytes * (self.table.end - self.table.first)

    @property
    def _block_bytes(self) -> int:
        scales = 0 if self.scales is None else 2 * self.scales[0][0].nbytes
        return self.keys[0].nbytes + self.values[0].nbytes + scales

    def append_attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """See `cache.Cache`.

        Raises:
            OutOfMemory: No block is free.
        """
        end = self.length + qkv.shape[0]
        assert end <= self.table.capacity, f"{end} tokens don't fit a cache of {self.table.capacity}"
        if end > self.table.ready:
            self.table.prepare(self.length, end)
        tables = None if self.rotary is None else self.rotary.tables
        mix = self._kernels.append_attend(qkv, self, self.length, tables, self.attention)
        self.length = end
        return mix

    def write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [T, K, D] of the positions from `start` on."""
        positions = torch.arange(start, start + len(keys))
        blocks, rows = self.table.blocks[positions // BLOCK].long(), positions % BLOCK
        if self.scales is not None:
            keys, self.scales[0][blocks, :, rows] = quantise(keys)
            values, self.scales[1][blocks, :, rows] = quantise(values)
        pairs = _pairs(keys.to(self.dtype).unflatten(-1, (-1, 2)))
        _pairs(self.keys)[blocks, :, rows // TILE, :, rows % TILE] = pairs
        self.values[blocks, :, rows] = values.to(self.dtype)

    def read(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of keys and values [K, end - start, D]; those of int8 become bf16."""
        first = start // BLOCK
        blocks = self.table.blocks[first : -(-end // BLOCK)].long()
        # [n, K, BLOCK / TILE, D / 2, TILE] of pairs -> [n, K, BLOCK, D]
        pairs = _pairs(self.keys)[blocks].transpose(3, 4).clone(memory_format=torch.contiguous_format)
        keys = pairs.view(self.dtype).flatten(2, 3)
        both = []
        for place, found in enumerate((keys, self.values[blocks])):
            if self.scales is not None:
                found = (found.float() * self.scales[place][blocks][..., None]).bfloat16()
            both.append(found.transpose(0, 1).flatten(1, 2)[:, start - first * BLOCK : end - first * BLOCK])
        return both[0], both[1]

    def over(self, table: BlockTable) -> PagedCache:
        """Return the cache of the same layer and length of another sequence."""
        other = PagedCache(self.attention, self.layer, table, self._kernels, self.rotary)
        other.length = self.length
        return other

    def trim(self, length: int) -> None:
        """Forget all tokens from position `length` on; `PagedCaches.trim` lets go of their blocks."""
        assert 0 <= length <= self.length, f"can't trim {self.length} tokens to {length}"
        self.length = length


class PagedCaches:
    """The caches of all layers of one sequence."""

    def __init__(self, caches: Sequence[PagedCache], tables: Sequence[BlockTable], rotaries: Sequence[Rotary]) -> None:
        """Hold what `reserve` or `fork` has made."""
        self.layers = tuple(caches)
        self.tables = tuple(tables)
        """One for each window there is among the layers."""
        self.rotaries = tuple(rotaries)
        self.turned = self.regime(1)
        """By which angles its keys are turned: the regime of the length that `fit` was told last."""

    @classmethod
    def reserve(
        cls, attention: Sequence[AttentionSpec], capacity: int, dtype: torch.dtype, device: str, kernels: Kernels
    ) -> PagedCaches:
        """Return the empty caches of a sequence of up to `capacity` tokens, with some more blocks for its branches."""
        turned = rotaries(attention, capacity, device)
        tables: dict[int | None, BlockTable] = {}
        for window, specs in _by_window(attention).items():
            pool = BlockPool(specs, blocks(window, capacity), dtype, device)
            tables[window] = BlockTable(pool, capacity)
        seen = dict.fromkeys(tables, -1)
        caches = []
        for spec in attention:
            seen[spec.window] += 1
            table, rotary = tables[spec.window], turned.get(id(spec.rope))
            caches.append(PagedCache(spec, seen[spec.window], table, kernels, rotary))
        return cls(caches, list(tables.values()), list(turned.values()))

    @property
    def pools(self) -> tuple[BlockPool, ...]:
        """The pools that the tables take blocks of."""
        return tuple(table.pool for table in self.tables)

    @property
    def nbytes(self) -> int:
        """Bytes reserved, for all sequences together."""
        return sum(pool.nbytes for pool in self.pools)

    def fit(self, total: int) -> None:
        """Turn queries and keys as sequences of `total` tokens ask for; if that changes, the caches must be empty."""
        for rotary in self.rotaries:
            rotary.fit(total)
        self.turned = self.regime(total)

    def regime(self, total: int) -> tuple[int, ...]:
        """Return what differs between lengths whose keys differ."""
        return tuple(rotary.rope.regime(total) for rotary in self.rotaries)

    def can_trim(self, length: int) -> bool:
        """Whether the sequence can go on from position `length`."""
        return all(table.can_trim(length) for table in self.tables)

    def trim(self, length: int) -> None:
        """Forget all tokens from position `length` on."""
        for cache in self.layers:
            cache.trim(min(length, cache.length))
        for table in self.tables:
            table.trim(length)

    def fork(self) -> PagedCaches:
        """Return another sequence that begins as this one does, of the same blocks."""
        forks = {id(table): table.fork() for table in self.tables}
        caches = [cache.over(forks[id(cache.table)]) for cache in self.layers]
        other = PagedCaches(caches, list(forks.values()), self.rotaries)
        other.turned = self.turned
        return other


def blocks(window: int | None, capacity: int) -> int:
    """Return how many blocks layers with this window get: of one sequence, and a quarter more for its branches."""
    tokens = capacity if window is None else min(capacity, window + MARGIN + STEP + BLOCK)
    needed = -(-tokens // BLOCK)
    return needed + needed // 4 + 1 + (0 if window is None else needed)


def cache_bytes(attention: Sequence[AttentionSpec], tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes that `PagedCaches.reserve` reserves for sequences of up to `tokens` tokens."""
    scale = torch.float32.itemsize if dtype == torch.int8 else 0
    return sum(
        2 * layer.kv_heads * (layer.head_size * dtype.itemsize + scale) * blocks(layer.window, tokens) * BLOCK
        for layer in attention
    )


def read_bytes(attention: Sequence[AttentionSpec], tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values that a new token reads where `tokens` are cached."""
    scale = torch.float32.itemsize if dtype == torch.int8 else 0
    return sum(
        2 * layer.kv_heads * (layer.head_size * dtype.itemsize + scale) * min(tokens, layer.window or tokens)
        for layer in attention
    )


def _by_window(attention: Sequence[AttentionSpec]) -> dict[int | None, list[AttentionSpec]]:
    found: dict[int | None, list[AttentionSpec]] = {}
    for spec in attention:
        found.setdefault(spec.window, []).append(spec)
    return found


def _pairs(keys: torch.Tensor) -> torch.Tensor:
    """Return keys [..., 2] as [...], each pair one number of twice the size: half as many to be moved."""
    return keys.view(_TWICE[keys.itemsize])[..., 0]


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 [T, K, D] and scales, fp32 [T, K], of keys or values [T, K, D]: the largest of a head becomes 127."""
    x = x.float()
    scale = x.abs().amax(-1) / _LARGEST
    codes = torch.round(x / torch.where(scale > 0, scale, 1.0)[..., None])
    return codes.to(torch.int8), scale
