"""Tables whose rows are looked up by token id: dense, or in the blocks the file holds."""

from __future__ import annotations

import torch

from tinychat.models.blocks import BlockMatrix


class Embedding:
    """ids [T] -> rows, fp32 [T, C]."""

    nbytes: int
    """Bytes resident."""
    dtype: torch.dtype = torch.float32
    """The numbers in it have been rounded to."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up."""
        raise NotImplementedError


class Table(Embedding):
    """A dense table."""

    def __init__(self, table: torch.Tensor) -> None:
        """Take [V, C], fp32 or bf16."""
        self._table = table
        self.nbytes = table.nbytes
        self.dtype = table.dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up ids [T]."""
        return self._table[ids].float()


class Rows(Embedding):
    """A matrix in its blocks, whose rows are dequantised, exactly, as they are looked up."""

    def __init__(self, matrix: BlockMatrix, *, shared: bool) -> None:
        """Take the matrix; `shared` where the head has it too, and counts its bytes."""
        self._matrix = matrix
        self.nbytes = 0 if shared else matrix.nbytes

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up ids [T]."""
        return self._matrix.lookup(ids)
