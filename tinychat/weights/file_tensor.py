"""A tensor whose bytes stand in one stretch of a file, as in safetensors and GGUF."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tinychat.weights.formats import BLOCKS, GROUP, PLAIN, BlockFormat
from tinychat.weights.source import SourceFile
from tinychat.weights.stored import Blocks, StoredTensor

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

CHUNK: Final = 2**18
"""Weights converted at a time, a multiple of every block: few enough to stay in a core's own cache meanwhile."""

_GGUF_CHUNK: Final = 2**16
"""The same for the gguf package, which makes a dozen arrays of it on the way."""


@dataclass(frozen=True, slots=True)
class FileTensor(StoredTensor):
    """A tensor that is read by its offset, into memory of its own."""

    offset: int
    """Of the first byte in the file."""
    source: SourceFile = field(repr=False)

    @property
    def file(self) -> Path:
        """The file it is in."""
        return self.source.path

    def dense(self, dtype: torch.dtype, rows: slice | None = None) -> torch.Tensor:
        """Return the weights; see `StoredTensor.dense`."""
        import torch

        self.require_weights()
        first, count = self.parts(rows)
        weights = torch.empty((count, *self.shape[1:]) if self.shape else (), dtype=dtype)
        flat, first = weights.view(-1), first * math.prod(self.shape[1:])
        if self.type in PLAIN:
            self._read_plain(flat, first, getattr(torch, PLAIN[self.type]))
        elif self.type in BLOCKS:
            self._read_by_codes(flat, first, BLOCKS[self.type])
        else:
            self._read_by_gguf(flat, first)
        return weights

    def blocks(self) -> Blocks | None:
        """Return codes and scales; see `StoredTensor.blocks`."""
        block_format = BLOCKS.get(self.type)
        if block_format is None or len(self.shape) != 2:
            return None
        rows, columns = self.shape
        codes, scale, zero = _room(rows * columns)
        self._read_blocks(block_format, 0, codes, scale, zero)
        codes = _as_codes(block_format, codes).view(rows, columns)
        return Blocks(codes, scale.view(rows, -1), zero.view(rows, -1), block_format.bits)

    def _read_plain(self, weights: torch.Tensor, first: int, stored: torch.dtype) -> None:
        """Fill weights [n] with the numbers from number `first` on, converted from the dtype `stored`."""
        import torch

        if stored == weights.dtype:
            self.source.read_into(self.offset + first * stored.itemsize, weights.view(torch.uint8).numpy().data)
            return
        chunk = torch.empty(min(CHUNK, len(weights)), dtype=stored)
        for start in range(0, len(weights), CHUNK):
            target = weights[start : start + CHUNK]
            part = chunk[: len(target)]
            self.source.read_into(self.offset + (first + start) * stored.itemsize, part.view(torch.uint8).numpy().data)
            target.copy_(part)

    def _read_by_codes(self, weights: torch.Tensor, first: int, block_format: BlockFormat) -> None:
        """Fill weights [n] from number `first` on, which begins a block."""
        codes, scale, zero = _room(min(CHUNK, len(weights)))
        for start in range(0, len(weights), CHUNK):
            target = weights[start : start + CHUNK]
            n = len(target) // GROUP
            self._read_blocks(block_format, first + start, codes[:n], scale[:n], zero[:n])
            values = _as_codes(block_format, codes[:n]).float().mul_(scale[:n, None]).add_(zero[:n, None])
            target.copy_(values.view(-1))

    def _read_blocks(
        self, block_format: BlockFormat, first: int, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor
    ) -> None:
        """Fill codes [n, GROUP], scale [n] and zero [n] with the blocks from weight `first` on."""
        groups = block_format.weights // GROUP
        each = [codes.numpy().reshape(-1, groups, GROUP), *(t.numpy().reshape(-1, groups) for t in (scale, zero))]
        step = CHUNK // block_format.weights
        chunk = np.empty(min(step, len(each[0])), dtype=block_format.layout)
        for start in range(0, len(each[0]), step):
            target = [values[start : start + step] for values in each]
            blocks = chunk[: len(target[0])]
            self._read_packed(blocks, first // block_format.weights + start)
            with np.errstate(over="ignore", invalid="ignore"):  # a scale may be NaN or infinite; who builds looks
                block_format.unpack(blocks, *target)

    def _read_by_gguf(self, weights: torch.Tensor, first: int) -> None:
        """Fill weights [n] from number `first` on, which begins a block, by the gguf package."""
        import torch
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

        number = GGMLQuantizationType[self.type]
        size, nbytes = GGML_QUANT_SIZES[number]
        for start in range(0, len(weights), _GGUF_CHUNK):
            target = weights[start : start + _GGUF_CHUNK]
            blocks = np.empty((len(target) // size, nbytes), dtype=np.uint8)
            self._read_packed(blocks, (first + start) // size)
            with np.errstate(over="ignore", invalid="ignore"):
                values = dequantize(blocks.reshape(1, -1), number)
            target.copy_(torch.from_numpy(values[0]))

    def _read_packed(self, blocks: NDArray[Any], first: int) -> None:
        """Fill an array [n, ...] with the n blocks from block `first` on."""
        size = blocks.nbytes // max(len(blocks), 1)
        self.source.read_into(self.offset + first * size, blocks.view(np.uint8).reshape(-1).data)


def _room(weights: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return room for the blocks of so many weights: codes uint8 [n, GROUP], scale [n] and zero [n], which is 0."""
    import torch

    count = weights // GROUP
    return torch.empty(count, GROUP, dtype=torch.uint8), torch.empty(count), torch.zeros(count)


def _as_codes(block_format: BlockFormat, codes: torch.Tensor) -> torch.Tensor:
    """Return bytes as the codes they are."""
    import torch

    return codes if block_format.bits == 4 else codes.view(torch.int8)
