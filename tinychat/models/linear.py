"""Matrix products by weights that never change: plain, packed once at load, or left in their 4-bit codes.

`y = x W^T + b` with x [T, in] and W [out, in]. Forms of W:

* fp32, bf16: packed by oneDNN into the layout its kernels read fastest. At one row the plain product reads memory two
  to four times slower on many CPUs.
* int4: the codes of a GGUF file's 4-bit blocks, unchanged, in the layout of torch's int4 product; activations are bf16.
* plain: `F.linear`. The oracle the others are held to, and what serves where they don't exist.

The packed products are internal operators of the torch release that pyproject.toml pins, so `abilities` tries each
once; nothing here is assumed. Which stored matrix takes which form is decided in `policy.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import torch
import torch.nn.functional as F

Form = Literal["fp32", "bf16", "int4"]
ACTIVATIONS: Final[dict[Form, torch.dtype]] = {"fp32": torch.float32, "bf16": torch.bfloat16, "int4": torch.bfloat16}
"""Form of a matrix -> dtype of what it multiplies and of the product."""
_INT4_ROWS: Final = 16
"""The int4 product wants a multiple of so many output rows."""


class Linear:
    """y [T, rows] = x [T, width] W^T + b, with x and y in dtype `activations`."""

    form: Form
    rows: int
    nbytes: int
    """Bytes resident."""

    @property
    def activations(self) -> torch.dtype:
        """Dtype of x and y."""
        return ACTIVATIONS[self.form]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        raise NotImplementedError


class Planned(Linear):
    """A product that was not built: it only knows its size."""

    def __init__(self, form: Form, rows: int, width: int, *, bias: bool) -> None:
        """Plan W [rows, width]."""
        self.form = form
        self.rows = rows
        self.nbytes = resident_bytes(form, rows, width) + (rows * self.activations.itemsize if bias else 0)


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
        return F.linear(x, self.weight, self.bias)


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
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, in]."""
        y: torch.Tensor = self._product(x, self._packed, self.bias, "none", [], "")
        return y


class Int4(Linear):
    """torch's int4 product, in which w = (code - 8) * scale + zero a group of columns."""

    form = "int4"

    def __init__(
        self, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        """Keep every code; scales and zeros are rounded to bf16.

        Args:
            codes: uint8 [out, in], 0 to 15.
            scale: fp32 [out, in / group].
            zero: fp32 [out, in / group]; w = code * scale + zero.
            bias: fp32 [out].

        Raises:
            RuntimeError: This torch has no such product.
        """
        self.rows, width = codes.shape
        pad = -self.rows % _INT4_ROWS
        if pad:
            codes, scale, zero = (F.pad(t, (0, 0, 0, pad)) for t in (codes, scale, zero))
        self._packed = torch._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)
        shifted = torch.stack((scale, zero + 8 * scale), dim=-1).transpose(0, 1)
        self._scales = shifted.contiguous().to(torch.bfloat16)  # [in / group, out, 2]
        self._group = width // scale.shape[1]
        self.bias = None if bias is None else bias.to(torch.bfloat16)
        self.nbytes = self._packed.nbytes + self._scales.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, in], bf16."""
        y = torch._weight_int4pack_mm_for_cpu(x, self._packed, self._group, self._scales)
        if y.shape[1] > self.rows:
            y = y[:, : self.rows]
        return y if self.bias is None else y + self.bias


class Joined(Linear):
    """Products that share an input but not a form; their outputs stand side by side."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        """Take the products in the order of their outputs; x has the dtype the first one wants."""
        self.parts = parts
        self.form = parts[0].form
        self.rows = sum(p.rows for p in parts)
        self.nbytes = sum(p.nbytes for p in parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [T, in] by each."""
        return torch.cat([p.forward(x.to(p.activations)).to(x.dtype) for p in self.parts], dim=-1)


def resident_bytes(form: Form, rows: int, width: int) -> int:
    """Return the bytes W [rows, width] takes; for int4, half a byte a code and two bf16 numbers a group of 32."""
    if form == "int4":
        rows += -rows % _INT4_ROWS
        return rows * width // 2 + rows * (width // 32) * 4
    return rows * width * ACTIVATIONS[form].itemsize


@dataclass(frozen=True, slots=True)
class Abilities:
    """Which of the packed products this machine has."""

    fp32: bool
    bf16: bool
    int4: bool


@cache
def abilities() -> Abilities:
    """Try each product on a small matrix and hold it against the plain one."""
    return Abilities(fp32=_works("fp32"), bf16=_works("bf16"), int4=_works("int4"))


def _works(form: Form) -> bool:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (32, 64), generator=generator, dtype=torch.uint8)
    weight = codes * 0.125 - 1.0  # exact in bf16
    x = torch.randint(-8, 9, (2, 64), generator=generator) / 8
    dtype = ACTIVATIONS[form]
    try:
        made: Linear
        if form == "int4":
            made = Int4(codes, torch.full((32, 2), 0.125), torch.full((32, 2), -1.0))
        else:
            made = Packed(weight.to(dtype))
        y = made.forward(x.to(dtype)).float()
    except (RuntimeError, AttributeError):
        return False
    return torch.allclose(y, x @ weight.T, rtol=1e-2, atol=1e-2)
