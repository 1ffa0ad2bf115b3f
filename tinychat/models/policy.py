"""What becomes of a stored matrix: which form it takes in memory, and how it gets there.

`auto` follows the file and what the machine can, never a timing: blocks keep their codes, everything else becomes bf16
where the packed bf16 product exists and fp32 where it doesn't. int8 and int4 are asked for: they quantise the matrices
of the layers, but those whose codes the file holds in that form already; the head is `auto`'s unless it is asked for
too, and embeddings are looked up as stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from tinychat.errors import CheckpointError
from tinychat.models.blocks import GROUP, ROWS, BlockMatrix, block_bytes
from tinychat.models.embedding import Embedding, Rows, Table
from tinychat.models.linear import (
    ACTIVATIONS,
    Abilities,
    Blocked,
    Copied,
    Form,
    Joined,
    Linear,
    Packed,
    Plain,
    Planned,
    Tiled,
)
from tinychat.models.quantise import Codes, quantise

DTYPES: Final = ("auto", "fp32", "bf16", "int8", "int4")
"""What can be asked for."""
HEADS: Final = ("auto", "bf16", "int8", "int4")
"""What can be asked for of the head."""
_BLOCKS: Final[dict[str, Form]] = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q4_K"), "int4"),
    **dict.fromkeys(("Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4"), "int8"),
}
"""Types of a GGUF file whose codes can stay -> the form they stay in."""
_SINGLE: Final = ("Q4_K", "IQ4_XS")
"""Those whose scales are products of two numbers, which half precision can't hold."""
_FORMS: Final[dict[str, Form]] = {form: form for form in ACTIVATIONS}
_BITS: Final[dict[Form, int]] = {"int4": 4, "int8": 8}
_CHUNK: Final = 2**18
"""Weights quantised at a time: few enough to stay in a core's own cache meanwhile."""


def codes_stay(stored: str, form: str) -> bool:
    """Whether a form holds the very codes that a type of a file has."""
    return _BLOCKS.get(stored) == form


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

    def dense(self, dtype: torch.dtype, rows: slice | None = None) -> torch.Tensor:
        """Read it, or these of its rows, dequantised exactly in fp32, then rounded to `dtype`."""

    def require_weights(self) -> None:
        """Raise UnsupportedModel where the type is not one of weights, or not known."""

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
    """Of `DTYPES`: what was asked for."""
    can: Abilities
    device: str = "cpu"
    """Where the weights go, and the caches with them."""
    head: str = "auto"
    """Of `HEADS`: what was asked for of the head; auto is fp32 or bf16 where `dtype` is, else what the file holds or
    dense."""
    copy: bool = False
    """Whether matrices of the layers that stay in blocks get a bf16 copy, for long prompts. The head never does: of a
    prompt it sees one token."""

    @property
    def dense(self) -> Form:
        """Form of matrices that don't stay in blocks."""
        if self.dtype in ("fp32", "bf16"):
            return "fp32" if self.dtype == "fp32" else "bf16"
        return "bf16" if self.can.bf16 else "fp32"

    def form(self, stored: StoredTensor, role: str = "layers", *, transposed: bool = False) -> Form:
        """Return the form a matrix takes.

        Args:
            stored: [rows, width].
            role: "layers", "head", or "embedding" for a table to be looked up.
            transposed: The file holds it as [width, rows].
        """
        asked = self.head if role == "head" else "auto"
        if asked == "auto" and (role == "layers" or self.dtype in ("fp32", "bf16")):
            asked = self.dtype
        wanted = _BLOCKS.get(stored.type) if asked == "auto" else _FORMS[asked]
        if wanted is None or wanted not in _BITS:
            return wanted or self.dense
        fits = stored.shape[0 if transposed else 1] % GROUP == 0
        return wanted if fits and self.can.blocks else self.dense

    def plan(self, parts: Sequence[Part], *, bias: bool, transposed: bool, role: str = "layers") -> Linear:
        """Return what `linear` would make, without reading anything."""
        forms = [self.form(p.stored, role, transposed=transposed) for p in parts]
        if len(set(forms)) > 1:
            return Joined([self.plan([p], bias=bias, transposed=transposed, role=role) for p in parts])
        rows = sum(p.stored.shape[1 if transposed else 0] for p in parts)
        width = parts[0].stored.shape[0 if transposed else 1]
        held = rows + -rows % ROWS if self._tiles(forms[0], width) else rows
        size = _bytes(forms[0], held, width, [p.stored.type for p in parts])
        copy = _bytes("bf16", rows, width, ()) if self._copies(forms[0], role) else 0
        return Planned(forms[0], rows, size, bias=bias, copy_bytes=copy)

    def linear(self, parts: Sequence[Part], *, transposed: bool = False, role: str = "layers") -> Linear:
        """Read matrices that share an input and make one product of them.

        Args:
            parts: The projections, in the order of their outputs; all have a bias or none has.
            transposed: The file holds them as [in, out].
            role: As of `form`.

        Raises:
            CheckpointError: A weight is NaN or infinite.
        """
        forms = [self.form(p.stored, role, transposed=transposed) for p in parts]
        if len(set(forms)) > 1:
            return Joined([self.linear([p], transposed=transposed, role=role) for p in parts])
        biases = [p.bias for p in parts if p.bias is not None]
        bias = torch.cat(biases) if biases else None
        if forms[0] in _BITS:
            read = [self._codes(part, forms[0], transposed=transposed) for part in parts]
            codes, scales, zeros = (_joined(t) for t in zip(*read, strict=True))
            del read
            kind = Copied if self._copies(forms[0], role) else Blocked
            return kind(BlockMatrix(codes, scales, zeros), bias)
        dtype = ACTIVATIONS[forms[0]]
        dense = []
        for part in parts:
            weight = self._read(part.stored, dtype)
            weight = weight.T if transposed else weight
            dense.append(weight if part.order is None else weight[part.order])
        weight = _joined(dense).contiguous()
        del dense
        if self._tiles(forms[0], weight.shape[1]):
            return Tiled(weight, bias)
        packs = self.can.fp32 if forms[0] == "fp32" else self.can.bf16
        return Packed(weight, bias) if packs else Plain(weight, bias)

    def _tiles(self, form: Form, width: int) -> bool:
        """Whether matrices of so many columns are multiplied in tiles."""
        if form in _BITS or width % 2:
            return False
        return self.can.fp32_tiles if form == "fp32" else self.can.bf16_tiles

    def _shared(self, stored: StoredTensor, head: Linear) -> bool:
        """Whether the head that a table is tied to holds the same numbers, and can be looked up."""
        form = self.form(stored, "embedding")
        return codes_stay(stored.type, head.form) or (form == head.form and self._tiles(form, stored.shape[1]))

    def _copies(self, form: Form, role: str) -> bool:
        return self.copy and role == "layers" and form in _BITS

    def embedding_bytes(self, stored: StoredTensor, head: Linear | None) -> int:
        """Return the bytes `embedding` will take: none where the head it is tied to is looked up itself."""
        if head is not None and self._shared(stored, head):
            return 0
        rows, width = stored.shape
        return _bytes(self.form(stored, "embedding"), rows, width, [stored.type])

    def embedding(self, stored: StoredTensor, head: Linear | None) -> Embedding:
        """Read a table of rows to be looked up; as stored, though the head that is tied to it be quantised.

        Args:
            stored: [V, C].
            head: What was built of the same tensor for the head it is tied to, or None.

        Raises:
            CheckpointError: A weight is NaN or infinite.
        """
        if isinstance(head, Blocked) and self._shared(stored, head):
            return Rows(head.matrix, shared=True)
        if isinstance(head, Tiled) and self._shared(stored, head):
            return Rows(head, shared=True, dtype=head.tiles.dtype)
        form = self.form(stored, "embedding")
        if form in _BITS:
            return Rows(BlockMatrix(*self._codes(Part(stored), form)), shared=False)
        return Table(self._read(stored, ACTIVATIONS[form]))

    def vector(self, stored: StoredTensor) -> torch.Tensor:
        """Read a norm's weight or a bias, fp32.

        Raises:
            CheckpointError: A number is NaN or infinite.
        """
        return self._read(stored, torch.float32)

    def _read(self, stored: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
        return finite(stored, stored.dense(dtype)).to(self.device)

    def _codes(self, part: Part, form: Form, *, transposed: bool = False) -> Codes:
        """Return the codes of a matrix, its rows in their final order: the file's own, or new ones."""
        stored = part.stored
        if codes_stay(stored.type, form):
            blocks = stored.blocks()
            codes, scale, zero = blocks.codes, finite(stored, blocks.scale), finite(stored, blocks.zero)
        else:
            rows, width = stored.shape[::-1] if transposed else stored.shape
            codes = torch.empty(rows, width, dtype=torch.uint8 if form == "int4" else torch.int8)
            scale, zero = torch.empty(2, rows, width // GROUP)
            start = 0
            for weight in self._rows(stored, transposed=transposed):
                end = start + len(weight)
                codes[start:end], scale[start:end], zero[start:end] = quantise(weight, _BITS[form])
                start = end
        if part.order is not None:
            codes, scale, zero = codes[part.order], scale[part.order], zero[part.order]
        return codes.to(self.device), scale.to(self.device), zero.to(self.device)

    def _rows(self, stored: StoredTensor, *, transposed: bool) -> Iterator[torch.Tensor]:
        """Yield a matrix [rows, width] some rows at a time, fp32."""
        if transposed:  # a row is spread over the whole of the file's
            weight = finite(stored, stored.dense(torch.float32)).T
            yield from (part.contiguous() for part in weight.split(max(1, _CHUNK // weight.shape[1])))
            return
        rows, width = stored.shape
        step = max(1, _CHUNK // width)
        for start in range(0, rows, step):
            yield finite(stored, stored.dense(torch.float32, slice(start, start + step)))


def _bytes(form: Form, rows: int, width: int, types: Sequence[str]) -> int:
    """Return the bytes of a matrix whose parts the file holds in these types."""
    if form in _BITS:
        single = any(codes_stay(stored, form) and stored in _SINGLE for stored in types)
        return block_bytes(_BITS[form], rows, width, half=not single)
    return rows * width * ACTIVATIONS[form].itemsize


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the rows of all parts, without a copy where there is one part."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def finite(stored: StoredTensor, values: torch.Tensor) -> torch.Tensor:
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
