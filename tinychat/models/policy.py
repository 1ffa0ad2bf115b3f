"""What becomes of a stored matrix: which form it takes in memory, and how it gets there.

`auto` follows the file and what the machine can, never a timing: blocks keep their codes, everything else becomes bf16
where the packed bf16 product exists and fp32 where it doesn't.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from tinychat.errors import CheckpointError
from tinychat.models.blocks import BlockMatrix, block_bytes
from tinychat.models.embedding import Embedding, Rows, Table
from tinychat.models.linear import ACTIVATIONS, Abilities, Blocked, Form, Joined, Linear, Packed, Plain, Planned

_BLOCKS: Final[dict[str, Form]] = {"Q4_0": "int4", "Q4_1": "int4", "Q8_0": "int8"}
"""Types of a GGUF file whose codes can stay -> the form they stay in."""


class StoredTensor(Protocol):
    """A tensor of a checkpoint, not yet read."""

    @property
    def name(self) -> str: ...
    @property
    def file(self) -> Path: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def type(self) -> str:
        """As the file says: F32, BF16, Q4_1."""

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Read it, dequantised exactly in fp32, then rounded to `dtype`."""

    def blocks(self) -> Any:
        """Return codes [N, K], scale and zero [N, K / group] with w = code * scale + zero, or None for dense types."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the projections that are packed as one product."""

    stored: StoredTensor
    order: torch.Tensor | None = None
    """The order its rows are to be put in; None leaves them."""
    bias: torch.Tensor | None = None
    """fp32 [rows], in the final order."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Chooses and builds."""

    dtype: str
    """auto, fp32 or bf16: what was asked for."""
    can: Abilities
    device: str = "cpu"
    """Where the weights go, and the caches with them."""

    @property
    def dense(self) -> Form:
        """Form of matrices that don't stay in blocks."""
        if self.dtype == "auto":
            return "bf16" if self.can.bf16 else "fp32"
        return "fp32" if self.dtype == "fp32" else "bf16"

    def form(self, stored: StoredTensor) -> Form:
        """Return the form a matrix takes."""
        stays = self.dtype == "auto" and self.can.blocks and stored.type in _BLOCKS
        return _BLOCKS[stored.type] if stays else self.dense

    def plan(self, parts: Sequence[Part], *, bias: bool, transposed: bool) -> Linear:
        """Return what `linear` would make, without reading anything."""
        forms = {self.form(p.stored) for p in parts}
        if len(forms) > 1:
            return Joined([self.plan([p], bias=bias, transposed=transposed) for p in parts])
        form = forms.pop()
        rows = sum(p.stored.shape[1 if transposed else 0] for p in parts)
        width = parts[0].stored.shape[0 if transposed else 1]
        return Planned(form, rows, _bytes(form, rows, width), bias=bias)

    def linear(self, parts: Sequence[Part], *, transposed: bool = False) -> Linear:
        """Read matrices that share an input and make one product of them.

        Args:
            parts: The projections, in the order of their outputs; all have a bias or none has.
            transposed: The file holds them as [in, out].

        Raises:
            CheckpointError: A weight is NaN or infinite.
        """
        forms = [self.form(p.stored) for p in parts]
        if len(set(forms)) > 1:
            return Joined([self.linear([p], transposed=transposed) for p in parts])
        biases = [p.bias for p in parts if p.bias is not None]
        bias = torch.cat(biases) if biases else None
        if forms[0] in ("int4", "int8"):
            codes, scales, zeros = (torch.cat(t) for t in zip(*map(self._blocks, parts), strict=True))
            return Blocked(BlockMatrix(codes, scales, zeros), bias)
        dtype = ACTIVATIONS[forms[0]]
        dense = []
        for part in parts:
            weight = self._read(part.stored, dtype)
            weight = weight.T if transposed else weight
            dense.append(weight if part.order is None else weight[part.order])
        weight = torch.cat(dense) if len(dense) > 1 else dense[0].contiguous()
        packs = self.can.fp32 if forms[0] == "fp32" else self.can.bf16
        return Packed(weight, bias) if packs else Plain(weight, bias)

    def embedding_bytes(self, stored: StoredTensor, head: Linear | None) -> int:
        """Return the bytes `embedding` will take; a head that is tied to it and in blocks is looked up itself."""
        form = self.form(stored)
        if form in ("int4", "int8"):
            return 0 if head is not None else _bytes(form, *stored.shape)
        return _bytes(form, *stored.shape)

    def embedding(self, stored: StoredTensor, head: Linear | None) -> Embedding:
        """Read a table of rows to be looked up.

        Args:
            stored: [V, C].
            head: What was built of the same tensor for the head it is tied to, or None.

        Raises:
            CheckpointError: A weight is NaN or infinite.
        """
        if isinstance(head, Blocked):
            return Rows(head.matrix, shared=True)
        form = self.form(stored)
        if form in ("int4", "int8"):
            return Rows(BlockMatrix(*self._read_blocks(stored)), shared=False)
        return Table(self._read(stored, ACTIVATIONS[form]))

    def vector(self, stored: StoredTensor) -> torch.Tensor:
        """Read a norm's weight or a bias, fp32.

        Raises:
            CheckpointError: A number is NaN or infinite.
        """
        return self._read(stored, torch.float32)

    def _read(self, stored: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
        return _finite(stored, stored.dense(dtype)).to(self.device)

    def _read_blocks(self, stored: StoredTensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return codes, scale and zero."""
        blocks = stored.blocks()
        scale, zero = _finite(stored, blocks.scale), _finite(stored, blocks.zero)
        return blocks.codes.to(self.device), scale.to(self.device), zero.to(self.device)

    def _blocks(self, part: Part) -> tuple[torch.Tensor, ...]:
        read = self._read_blocks(part.stored)
        return read if part.order is None else tuple(tensor[part.order] for tensor in read)


def _bytes(form: Form, rows: int, width: int) -> int:
    if form in ("int4", "int8"):
        return block_bytes(4 if form == "int4" else 8, rows, width)
    return rows * width * ACTIVATIONS[form].itemsize


def _finite(stored: StoredTensor, values: torch.Tensor) -> torch.Tensor:
    """Return `values`.

    Raises:
        CheckpointError: They hold a NaN or an infinity.
    """
    # The sum is one fast pass, and NaN or infinite whenever a value is; it can also overflow by itself.
    if not bool(torch.isfinite(values.sum(dtype=torch.float32))) and not bool(torch.isfinite(values).all()):
        raise CheckpointError(
            f"{stored.name} in {stored.file} holds a NaN or an infinity.", "The file is damaged: fetch it again."
        )
    return values
