"""The KV cache as a pool of blocks of 32 tokens, a table of blocks a sequence, and a count of who uses each block.

Sequences that begin alike (versions of a reply, branches) share their first blocks: `fork` copies a table, and a block
that two tables name is copied by whoever writes into it first. Layers that see equally far share tables; where they see
a window only, blocks that lie wholly behind it go back to the pool. After Kwon et al. 2023, arXiv:2309.06180.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from tinychat.errors import OutOfMemory
from tinychat.models.cache import AttentionSpec

BLOCK: Final = 32
"""Tokens of a block."""
TILE: Final = 16
"""Tokens whose keys lie side by side, two components of each at a time."""
STEP: Final = 256
"""Most tokens that are appended at once."""
MARGIN: Final = 2 * BLOCK
"""Tokens behind a window that are kept, so that a few tokens can be taken back."""


class BlockPool:
    """Keys and values of some layers, in blocks."""

    def __init__(self, layers: Sequence[AttentionSpec], blocks: int, dtype: torch.dtype, device: str) -> None:
        """Reserve room.

        Args:
            layers: All with the same window.
            blocks: How many there are.
            dtype: Of keys and values: fp32, bf16 or int8, which has a scale a head and token.
            device: Where they are.
        """
        self.dtype = dtype
        self.window = layers[0].window
        self.keys: list[torch.Tensor] = []
        """Of each layer: [blocks, K, BLOCK / TILE, D / 2, TILE, 2], as kernels/attention_tile.py reads them."""
        self.values: list[torch.Tensor] = []
        """Of each layer: [blocks, K, BLOCK, D]."""
        self.scales: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Of int8 keys and values of each layer: fp32 [blocks, K, BLOCK]."""
        for layer in layers:
            shape = blocks, layer.kv_heads, BLOCK, layer.head_size
            tiles = *shape[:2], BLOCK // TILE, layer.head_size // 2, TILE, 2
            self.keys.append(torch.empty(tiles, dtype=dtype, device=device))
            self.values.append(torch.empty(shape, dtype=dtype, device=device))
            if dtype == torch.int8:
                self.scales.append((torch.empty(shape[:3], device=device), torch.empty(shape[:3], device=device)))
        self.references = [0] * blocks
        self._free = list(reversed(range(blocks)))
        self.failures = 0
        """How often a block was asked for and there was none."""
        self.copies = 0
        """How often a block was copied, since a table wrote into one that another names."""

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self.references)

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def shared(self) -> int:
        """Blocks that several tables name."""
        return sum(count > 1 for count in self.references)

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def take(self) -> int:
        """Return a free block, used once from now on.

        Raises:
            OutOfMemory: There is none.
        """
        if not self._free:
            self.failures += 1
            raise OutOfMemory(
                f"All {self.blocks} blocks of the cache ({self.blocks * BLOCK:,} tokens) are in use.",
                "Start a new chat, or load the model with a larger --context.",
            )
        block = self._free.pop()
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Count one more use."""
        self.references[block] += 1

    def release(self, block: int) -> None:
        """Count one use less."""
        assert self.references[block] > 0, "a free block was released"
        self.references[block] -= 1
        if not self.references[block]:
            self._free.append(block)

    def copy(self, source: int, target: int) -> None:
        """Copy what a block holds, in all layers."""
        self.copies += 1
        for tensor in self._tensors():
            tensor[target] = tensor[source]

    def _tensors(self) -> list[torch.Tensor]:
        return [*self.keys, *self.values, *(scale for pair in self.scales for scale in pair)]


class BlockTable:
    """The blocks of one sequence."""

    def __init__(self, pool: BlockPool, capacity: int) -> None:
        """Begin with none; `capacity` is the most tokens there will be."""
        self.pool = pool
        self.capacity = capacity
        self.blocks = torch.zeros(-(-capacity // BLOCK), dtype=torch.int32)
        """Place in the sequence, in blocks -> place in the pool."""
        self.first = 0
        """The first place that still has a block."""
        self.end = 0
        """The first place that has none yet."""
        self.ready = 0
        """Up to here, positions may be written."""

    def prepare(self, length: int, end: int) -> None:
        """Make positions length .. end ones that may be written; let go of what lies behind the window of `length`.

        Raises:
            OutOfMemory: The pool is used up; positions before `length` are as they were.
        """
        window = self.pool.window
        if window is not None:
            behind = max(0, length + 1 - window - MARGIN) // BLOCK
            while self.first < min(behind, self.end):
                self.pool.release(int(self.blocks[self.first]))
                self.first += 1
        for place in range(length // BLOCK, -(-end // BLOCK)):
            if place >= self.end:
                self.blocks[place] = self.pool.take()
                self.end = place + 1
            elif self.pool.references[block := int(self.blocks[place])] > 1:
                self.blocks[place] = own = self.pool.take()
                self.pool.copy(block, own)
                self.pool.release(block)
            self.ready = (place + 1) * BLOCK

    def trim(self, length: int) -> None:
        """Let go of blocks that hold only positions from `length` on."""
        assert self.can_trim(length), f"what position {length} sees is gone"
        kept = max(-(-length // BLOCK), self.first)
        for place in range(kept, self.end):
            self.pool.release(int(self.blocks[place]))
        self.end = min(self.end, kept)
        if length == 0:
            self.first = self.end = 0
        self.ready = min(self.ready, length // BLOCK * BLOCK)

    def can_trim(self, length: int) -> bool:
        """Whether all that position `length` sees would still be there."""
        window = self.pool.window
        return length == 0 or window is None or self.first * BLOCK <= max(0, length + 1 - window)

    def fork(self) -> BlockTable:
        """Return a table of the same blocks; whoever writes into one of them first gets a copy of it for itself."""
        other = BlockTable(self.pool, self.capacity)
        other.blocks.copy_(self.blocks)
        other.first, other.end = self.first, self.end
        for place in range(self.first, self.end):
            self.pool.share(int(self.blocks[place]))
        self.ready = other.ready = 0
        return other
