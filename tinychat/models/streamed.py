"""Products whose weights are read from the file each time, in fp32: a model of any size in the memory of a few rows.

Every number is the file's, dequantised exactly, and every sum is fp32's: what other forms lose is measured against it
(`engine/loss.py`). One pass over a text reads each weight once; for replies it would be far too slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
import torch.nn.functional as F

from tinychat.models.embedding import Embedding
from tinychat.models.linear import Abilities, Form, Linear
from tinychat.models.policy import Part, Policy, StoredTensor, finite

_ROWS_OF: Final = 2**22
"""Weights in memory at a time."""


class Streamed(Linear):
    """`F.linear` in fp32, some rows of the matrix at a time."""

    form: Form = "fp32"
    nbytes = 0

    def __init__(self, parts: Sequence[Part], *, transposed: bool) -> None:
        """Take the projections in the order of their outputs; nothing is read."""
        self._parts = parts
        self._transposed = transposed
        self.rows = sum(part.stored.shape[1 if transposed else 0] for part in parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, in]."""
        return torch.cat([self._product(x.float(), part) for part in self._parts], dim=-1)

    def _product(self, x: torch.Tensor, part: Part) -> torch.Tensor:
        y = torch.cat([F.linear(x, rows) for rows in self._rows(part.stored)], dim=-1)
        y = y if part.order is None else y[:, part.order]
        return y if part.bias is None else y + part.bias

    def _rows(self, stored: StoredTensor) -> Iterator[torch.Tensor]:
        if self._transposed:
            yield finite(stored, stored.dense(torch.float32)).T
            return
        rows, width = stored.shape
        step = max(1, _ROWS_OF // width)
        for start in range(0, rows, step):
            yield finite(stored, stored.dense(torch.float32, slice(start, start + step)))


class StreamedTable(Embedding):
    """Reads the rows it is asked for."""

    nbytes = 0

    def __init__(self, stored: StoredTensor) -> None:
        """Take [V, C]; nothing is read."""
        self._stored = stored

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up ids [T]."""
        known = {i: self._stored.dense(torch.float32, slice(i, i + 1)) for i in set(ids.tolist())}
        return torch.cat([known[i] for i in ids.tolist()])


class Streaming(Policy):
    """Leaves every matrix in its file, which has to stay open."""

    __slots__ = ()

    def __init__(self) -> None:
        """Ask for nothing that a machine may lack."""
        super().__init__("fp32", Abilities(fp32=False, bf16=False, blocks=False))

    def linear(self, parts: Sequence[Part], *, transposed: bool = False, role: str = "layers") -> Linear:
        """Return the product by matrices that share an input."""
        del role
        return Streamed(parts, transposed=transposed)

    def embedding(self, stored: StoredTensor, head: Linear | None) -> Embedding:
        """Return a table of rows to be looked up."""
        del head
        return StreamedTable(stored)
