"""A tensor in a file: its header is known, its numbers are not read before they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.errors import UnsupportedModel
from tinychat.weights.formats import BLOCKS, DEQUANTISED, GROUP, PLAIN
from tinychat.weights.source import quoted

if TYPE_CHECKING:
    import torch


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
    """fp32 [N, K / group]; all 0 where `bits` is 8."""
    bits: int
    group: int = GROUP


@dataclass(frozen=True, slots=True)
class StoredTensor(ABC):
    """A tensor in a file; the numbers are read anew by each call, and given as they are."""

    name: str
    shape: tuple[int, ...]
    """Rows first, in every file format."""
    type: str
    """F32, BF16, Q4_1 ...: as the file says."""
    nbytes: int
    """Size in the file."""

    @property
    @abstractmethod
    def file(self) -> Path:
        """The file it is in."""

    @abstractmethod
    def dense(self, dtype: torch.dtype, rows: slice | None = None) -> torch.Tensor:
        """Return the weights as a fresh contiguous tensor; blocks are dequantised in fp32 before they are rounded.

        Beside the result, no more than a few megabytes are taken meanwhile.

        Args:
            dtype: Of the result: a floating-point one.
            rows: The part wanted of the first dimension, in steps of one; all by default. Of a quantised tensor of
                one dimension, all.

        Raises:
            UnsupportedModel: As `require_weights`.
            CheckpointError: The file ends early.
        """

    @abstractmethod
    def blocks(self) -> Blocks | None:
        """Return the codes and scales of a matrix whose type is one of `BLOCKS`, as stored; None for any other tensor.

        Raises:
            CheckpointError: The file ends early.
        """

    def require_weights(self) -> None:
        """Hold the type against those that are weights; it costs nothing.

        Raises:
            UnsupportedModel: It is not one of weights (integers), or not known here.
        """
        if self.type not in (*PLAIN, *BLOCKS, *DEQUANTISED):
            raise UnsupportedModel(
                f"Tensor {quoted(self.name)} of {self.file} is stored as {self.type}, "
                f"which tinychat doesn't read as weights; it reads {', '.join((*PLAIN, *BLOCKS, *DEQUANTISED))}.",
            )

    def parts(self, rows: slice | None) -> tuple[int, int]:
        """Return the first row wanted and the number of them."""
        start, stop, step = (rows or slice(None)).indices(self.shape[0] if self.shape else 1)
        assert step == 1, "rows are read in order"
        return start, max(stop - start, 0)
