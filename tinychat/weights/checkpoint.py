"""A checkpoint: configuration and named tensors, none of them read before it is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np

from tinychat.errors import UnsupportedModel
from tinychat.weights.formats import BLOCKS, GROUP, PLAIN, BlockFormat
from tinychat.weights.source import SourceFile, quoted

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

CHUNK: Final = 2**18
"""Weights converted at a time, a multiple of every block: few enough to stay in a core's own cache meanwhile."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Quantised weights as they are stored: w[n, k] = codes[n, k] * scale[n, k // group] + zero[n, k // group].

    The equation holds exactly in fp32: it is how the formats define their numbers.
    """

    codes: torch.Tensor
    """[N, K]; uint8 of 0 to 15 where `bits` is 4, int8 where it is 8."""
    scale: torch.Tensor
    """fp32 [N, K / group]."""
    zero: torch.Tensor
    """fp32 [N, K / group]; all 0 in a format that has none."""
    bits: int
    group: int = GROUP


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: the header is known, the numbers are read anew by each call, and given as they are."""

    name: str
    shape: tuple[int, ...]
    """Rows first, in both file formats."""
    type: str
    """F32, BF16, Q4_1 ...: as the file says."""
    nbytes: int
    """Size in the file."""
    offset: int
    """Of the first byte in the file."""
    source: SourceFile = field(repr=False)

    @property
    def file(self) -> Path:
        """The file it is in."""
        return self.source.path

    def dense(self, dtype: torch.dtype, rows: slice | None = None) -> torch.Tensor:
        """Return the weights as a fresh contiguous tensor; blocks are dequantised in fp32 before they are rounded.

        Args:
            dtype: Of the result: a floating-point one.
            rows: The part wanted of the first dimension, in steps of one; all by default. Of a quantised tensor of
                one dimension, all.

        Raises:
            UnsupportedModel: The type is not one of weights (integers), or not known here.
            CheckpointError: The file ends early.
        """
        import torch

        start, stop, step = (rows or slice(None)).indices(self.shape[0] if self.shape else 1)
        assert step == 1, "rows are read in order"
        weights = torch.empty((max(stop - start, 0), *self.shape[1:]) if self.shape else (), dtype=dtype)
        first = start * math.prod(self.shape[1:])
        if self.type in PLAIN:
            self._read_plain(weights.view(-1), first, getattr(torch, PLAIN[self.type]))
        elif self.type in BLOCKS:
            self._dequantise(weights.view(-1), first, BLOCKS[self.type])
        else:
            raise UnsupportedModel(
                f"Tensor {quoted(self.name)} of {self.file} is stored as {self.type}, "
                f"which tinychat doesn't read as weights; it reads {', '.join((*PLAIN, *BLOCKS))}.",
            )
        return weights

    def blocks(self) -> Blocks | None:
        """Return the codes and scales of a quantised matrix as they are stored; None for every other tensor.

        Raises:
            CheckpointError: The file ends early.
        """
        block_format = BLOCKS.get(self.type)
        if block_format is None or len(self.shape) != 2:
            return None
        rows, columns = self.shape
        codes, scale, zero = _room(block_format, rows * columns // GROUP)
        self._read_blocks(block_format, 0, codes.numpy(), scale.numpy(), zero.numpy())
        return Blocks(codes.view(rows, columns), scale.view(rows, -1), zero.view(rows, -1), block_format.bits)

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

    def _dequantise(self, weights: torch.Tensor, first: int, block_format: BlockFormat) -> None:
        """Fill weights [n] from number `first` on, which begins a block."""
        assert first % GROUP == 0, "a part begins where a block does"
        codes, scale, zero = _room(block_format, min(CHUNK, len(weights)) // GROUP)
        for start in range(0, len(weights), CHUNK):
            target = weights[start : start + CHUNK]
            n = len(target) // GROUP
            self._read_blocks(
                block_format, (first + start) // GROUP, codes[:n].numpy(), scale[:n].numpy(), zero[:n].numpy()
            )
            target.copy_(codes[:n].float().mul_(scale[:n, None]).add_(zero[:n, None]).view(-1))

    def _read_blocks(
        self,
        block_format: BlockFormat,
        first: int,
        codes: NDArray[Any],
        scale: NDArray[np.float32],
        zero: NDArray[np.float32],
    ) -> None:
        """Fill codes [n, GROUP], scale [n] and zero [n] with the n blocks from block `first` on."""
        size = block_format.layout.itemsize
        step = CHUNK // GROUP
        chunk = np.empty(min(step, len(scale)), dtype=block_format.layout)
        for start in range(0, len(scale), step):
            part = slice(start, start + step)
            blocks = chunk[: len(scale[part])]
            self.source.read_into(self.offset + (first + start) * size, blocks.view(np.uint8).data)
            block_format.unpack(blocks, codes[part], scale[part], zero[part])


def _room(block_format: BlockFormat, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return empty codes [count, GROUP], scale [count] and zero [count]."""
    import torch

    codes = torch.empty(count, GROUP, dtype=torch.uint8 if block_format.bits == 4 else torch.int8)
    return codes, torch.empty(count), torch.empty(count)


class Checkpoint:
    """A model's files: what they say about it, and its tensors by name."""

    def __init__(
        self,
        path: Path,
        file_format: Literal["gguf", "safetensors"],
        config: dict[str, Any],
        tensors: dict[str, StoredTensor],
        sources: Sequence[SourceFile],
        generation_config: dict[str, Any] | None = None,
    ) -> None:
        """Hold what `open_checkpoint` has read; the sources are closed with the checkpoint."""
        self.path: Final = path
        """The .gguf file or the folder."""
        self.format: Final = file_format
        self.config: Final = config
        """config.json, or the metadata of the GGUF header."""
        self.generation_config: Final = generation_config or {}
        """generation_config.json; empty where there is none (GGUF may have general.sampling.* in its metadata)."""
        self.tensors: Final = tensors
        """In file order."""
        self._sources: Final = tuple(sources)

    def close(self) -> None:
        """Close the files; tensors already made stay valid."""
        for source in self._sources:
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
