"""Tables whose rows are looked up by token id: dense, or in the order in which a product reads them."""

from __future__ import annotations

from typing import Protocol

import torch


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


class Matrix(Protocol):
    """A matrix in blocks or in tiles."""

    @property
    def nbytes(self) -> int: ...
    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows, exactly: fp32 [T, C], for ids [T]."""


class Rows(Embedding):
    """A matrix that is ordered for products."""

    def __init__(self, matrix: Matrix, *, shared: bool, dtype: torch.dtype = torch.float32) -> None:
        """Take the matrix; `shared` where the head has it too, and counts its bytes."""
        self._matrix = matrix
        self.nbytes = 0 if shared else matrix.nbytes
        self.dtype = dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up ids [T]."""
        return self._matrix.lookup(ids)
