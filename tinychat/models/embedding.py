"""Tables whose rows are looked up by token id: dense, or in the blocks the file holds."""

from __future__ import annotations

import torch


class Embedding:
    """ids [T] -> rows, fp32 [T, C]."""

    nbytes: int
    """Bytes resident."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up."""
        raise NotImplementedError


class Table(Embedding):
    """A dense table."""

    def __init__(self, table: torch.Tensor) -> None:
        """Take [V, C], fp32 or bf16."""
        self._table = table
        self.nbytes = table.nbytes

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up ids [T]."""
        return self._table[ids].float()


class Coded(Embedding):
    """A table in blocks, whose rows are dequantised as they are looked up: exact, and a quarter to half of bf16."""

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> None:
        """Take the blocks.

        Args:
            codes: int8 [V, C] of 8-bit blocks, uint8 [V, C] of 4-bit ones (0 to 15; kept two in a byte).
            scale: fp32 [V, C / group].
            zero: fp32 [V, C / group]; w = code * scale + zero.
        """
        self._four_bits = codes.dtype == torch.uint8
        self._codes = codes[:, 0::2] | (codes[:, 1::2] << 4) if self._four_bits else codes
        self._scale, self._zero = scale, zero
        self.nbytes = self._codes.nbytes + scale.nbytes + zero.nbytes

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up ids [T]."""
        codes = self._codes[ids]
        if self._four_bits:
            codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)
        groups = codes.float().view(len(ids), self._scale.shape[1], -1)
        return (groups * self._scale[ids].unsqueeze(-1) + self._zero[ids].unsqueeze(-1)).flatten(1)
