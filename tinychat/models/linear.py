"""Matrix products by weights that never change: plain, packed once at load, or left in the blocks of the file.

`y = x W^T + b` with x [T, in] and W [out, in]. Forms of W:

* fp32, bf16: packed by oneDNN into the layout its kernels read fastest; internal operators of the torch release that
  pyproject.toml pins. At one row the plain product reads memory two to four times slower on many CPUs.
* fp32, bf16 in tiles: ours (kernels/dense_product.py), with activations in fp32. On a Xeon without AMX it reads bf16
  1.4 times as fast as oneDNN's at one row, and is as much faster at 256; fp32 1.1 to 1.8 times as fast at one row,
  twice at 2 to 16, and takes 1.2 to 1.3 times as long at 256.
* int4, int8: the codes of a GGUF file's blocks, unchanged (kernels/block_product.py); beside them, where that is
  wanted, a packed bf16 copy for long prompts.
* plain: `F.linear`. The oracle the others are held to, and what serves where they don't exist.

`abilities` tries each once, when it is first needed; nothing is assumed. Which stored matrix takes which form is
decided in policy.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final, Literal

import torch
import torch.nn.functional as F

from tinychat.models.blocks import ROWS, BlockMatrix

COPY_FROM: Final = 32
"""Tokens from which on a bf16 copy multiplies instead of the blocks. The copy is four times as large as 4-bit blocks:
for fewer tokens, reading it would cost what multiplying saves. And what speculation checks at once, at most 9, has to
be computed as the same tokens are one by one."""

Form = Literal["fp32", "bf16", "int4", "int8"]
ACTIVATIONS: Final[dict[Form, torch.dtype]] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "int4": torch.float32,
    "int8": torch.float32,
}
"""Form of a matrix -> dtype of what it multiplies and of the product."""


class Linear:
    """y [T, rows] = x [T, width] W^T + b, with y in dtype `activations`, and x best in it too.

    A file may hold the matrices of one layer in different types, so what one product gives, another of another form may
    take.
    """

    form: Form
    rows: int
    nbytes: int
    """Bytes resident."""
    copy_bytes: int = 0
    """Those of them that are a bf16 copy."""

    @property
    def activations(self) -> torch.dtype:
        """Dtype of x and y."""
        return ACTIVATIONS[self.form]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        raise NotImplementedError


class Planned(Linear):
    """A product that was not built: it only knows its size."""

    def __init__(self, form: Form, rows: int, nbytes: int, *, bias: bool, copy_bytes: int = 0) -> None:
        """Plan W [rows, ...] of so many bytes, and a copy of so many more."""
        self.form = form
        self.rows = rows
        self.copy_bytes = copy_bytes
        self.nbytes = nbytes + copy_bytes + (rows * self.activations.itemsize if bias else 0)


class Plain(Linear):
    """`F.linear` by the dense matrix."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Take W [out, in] (fp32 or bf16) and b [out]."""
        self.form = "fp32" if weight.dtype == torch.float32 else "bf16"
        self.rows = weight.shape[0]
        self.weight = weight
        self.bias = None if bias is None else bias.to(weight.dtype)
        self.nbytes = weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, in]."""
        return F.linear(_as(self.weight.dtype, x), self.weight, self.bias)


class Packed(Linear):
    """oneDNN's product by a matrix that was reordered at load."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Take W [out, in] (fp32 or bf16) and b [out].

        Raises:
            RuntimeError: This CPU has no such product.
        """
        self.form = "fp32" if weight.dtype == torch.float32 else "bf16"
        self.rows = weight.shape[0]
        self.bias = None if bias is None else bias.to(weight.dtype)
        self.nbytes = weight.nbytes + (0 if self.bias is None else self.bias.nbytes)
        self._dtype = weight.dtype
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, in]."""
        y: torch.Tensor = self._product(_as(self._dtype, x), self._packed, self.bias, "none", [], "")
        return y


class Tiled(Linear):
    """The product by a matrix in tiles of 16 rows; activations stay fp32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Take W [out, in] (fp32 or bf16), in a multiple of 2, and b [out].

        Raises:
            ImportError: Numba, which compiles the product, is missing.
        """
        from tinychat.kernels.dense_product import DenseProduct

        self.form = "fp32" if weight.dtype == torch.float32 else "bf16"
        self.rows, width = weight.shape
        weight = F.pad(weight, (0, 0, 0, -self.rows % ROWS)) if self.rows % ROWS else weight
        together = 1 if self.form == "fp32" else 2
        self.tiles = weight.view(-1, ROWS, width // together, together).transpose(1, 2).contiguous()
        self.bias = None if bias is None else bias.to(weight.dtype)
        self.nbytes = self.tiles.nbytes + (0 if self.bias is None else self.bias.nbytes)
        self._product = DenseProduct(self.tiles)

    @property
    def activations(self) -> torch.dtype:
        """Dtype of x and y."""
        return torch.float32

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, in]."""
        y = self._product(_as(torch.float32, x))
        if y.shape[1] > self.rows:
            y = y[:, : self.rows]
        return y if self.bias is None else y + self.bias

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows, fp32 [T, in], for ids [T]."""
        return self.tiles[ids // ROWS, :, ids % ROWS].flatten(1).float()


class Blocked(Linear):
    """The product by a matrix in its blocks."""

    def __init__(self, matrix: BlockMatrix, bias: torch.Tensor | None = None) -> None:
        """Take W [out, in] and b [out].

        Raises:
            ImportError: Numba, which compiles the product, is missing.
        """
        from tinychat.kernels.block_product import BlockProduct

        self.form = "int4" if matrix.bits == 4 else "int8"
        self.rows = matrix.rows
        self.matrix = matrix
        self.bias = bias
        self.nbytes = matrix.nbytes + (0 if bias is None else bias.nbytes)
        self._product = BlockProduct(matrix.codes, matrix.scales, matrix.zeros)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, in]."""
        y = self._product(_as(torch.float32, x))
        if y.shape[1] > self.rows:
            y = y[:, : self.rows]
        return y if self.bias is None else y + self.bias


class Copied(Blocked):
    """The product by a matrix in its blocks, and from `COPY_FROM` tokens on by a packed bf16 copy of it.

    The copy rounds weights and activations to 8 bits; the blocks' product rounds activations alone, to 16. It has to be
    kept: made anew for each chunk of a prompt, it takes two to three times as long as the blocks' product by itself.
    Whether it pays is the processor's affair; see engine/prefill_copy.py.
    """

    def __init__(self, matrix: BlockMatrix, bias: torch.Tensor | None = None) -> None:
        """Take W [out, in] and b [out].

        Raises:
            ImportError: Numba is missing.
            RuntimeError: This CPU has no packed bf16 product.
        """
        super().__init__(matrix, bias)
        self._copy = Packed(matrix.dense(torch.bfloat16))
        self.copy_bytes = self._copy.nbytes
        self.nbytes += self.copy_bytes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, in]."""
        if len(x) < COPY_FROM:
            return super().forward(x)
        y = self._copy.forward(x).float()
        return y if self.bias is None else y.add_(self.bias)


class Joined(Linear):
    """Products that share an input but not a form; their outputs stand side by side."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        """Take the products in the order of their outputs; x has the dtype the first one wants."""
        self.parts = parts
        self.form = parts[0].form
        self.rows = sum(p.rows for p in parts)
        self.nbytes = sum(p.nbytes for p in parts)
        self.copy_bytes = sum(p.copy_bytes for p in parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, in] by each."""
        return torch.cat([p.forward(x).to(x.dtype) for p in self.parts], dim=-1)


def _as(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == dtype else x.to(dtype)


@dataclass(frozen=True)
class Abilities:
    """Which products a machine has besides the plain one."""

    fp32: bool
    """oneDNN's, packed."""
    bf16: bool
    """oneDNN's, packed; not on CPUs without bf16 instructions."""
    blocks: bool
    """Ours, by codes."""
    amx: bool = False
    """Whether the packed bf16 product has AMX, which multiplies whole tiles."""
    fp32_tiles: bool = False
    """Ours, by fp32, where it is the faster one: not on AMD's, on which oneDNN's reads as fast as memory goes."""
    bf16_tiles: bool = False
    """Ours, by bf16, where it is the faster one: not with AMX, nor on AMD's, whose bf16 is twice as fast as fp32."""


class _Here(Abilities):
    """Those of this machine. Each is tried when it is first asked about: a product of ours is compiled for that."""

    def __init__(self) -> None:
        """Try nothing yet."""

    @cached_property
    def fp32(self) -> bool:
        return _works(Packed, torch.float32)

    @cached_property
    def bf16(self) -> bool:
        return _works(Packed, torch.bfloat16)

    @cached_property
    def blocks(self) -> bool:
        return all(_works(Blocked, dtype) for dtype in (torch.uint8, torch.int8))

    @cached_property
    def amx(self) -> bool:
        # The processor has it, and the system lets this process use its registers.
        return self.bf16 and bool(torch.cpu.get_capabilities().get("amx_bf16")) and torch.cpu._init_amx()

    @cached_property
    def fp32_tiles(self) -> bool:
        return not _amd() and _works(Tiled, torch.float32)

    @cached_property
    def bf16_tiles(self) -> bool:
        return self.bf16 and not self.amx and not _amd() and _works(Tiled, torch.bfloat16)


@cache
def abilities() -> Abilities:
    """Return what this machine can: nothing is assumed, but nothing is tried before it is asked for."""
    return _Here()


def _works(kind: Callable[[Any], Linear], dtype: torch.dtype) -> bool:
    """Hold a product against the plain one, on a small matrix, by one token and by several.

    Args:
        kind: Makes it.
        dtype: Of a dense matrix; uint8 and int8 are codes of 4 and of 8 bits.
    """
    # 33 rows and 5 tokens are no multiples of what the products take at once. All numbers are exact in bf16.
    signed = torch.arange(33 * 64).view(33, 64).remainder(15) - 7
    weight = signed * 0.125
    x = torch.arange(5 * 64).view(5, 64).remainder(17) / 8 - 1.0
    scale, least = torch.full((33, 2), 0.125), -7 if dtype == torch.uint8 else 0
    coded = not dtype.is_floating_point
    matrix = BlockMatrix((signed - least).to(dtype), scale, scale * least) if coded else weight.to(dtype)

    def right(x: torch.Tensor, y: torch.Tensor) -> bool:
        expected = x @ weight.T
        return y.shape == expected.shape and torch.allclose(y.float(), expected, rtol=1e-2, atol=1e-2)

    try:
        made = kind(matrix)
        return all(right(x[:tokens], made.forward(x[:tokens].to(made.activations))) for tokens in (1, 2, 5))
    except (RuntimeError, AttributeError, ImportError):
        return False


def _amd() -> bool:
    """Whether the processor is one of AMD's."""
    try:
        from llvmlite import binding
    except ImportError:
        return False
    return str(binding.get_host_cpu_name()).startswith("znver")
