"""Products by a matrix that stays in its blocks: 4-bit or 8-bit codes with a scale a group of 32 columns.

The activations of a group are rounded to 16 bits, relative to the largest of them: an error of at most 1.5e-5 of it,
where a bf16 activation is off by up to 4e-3 of itself. Everything else is exact in integers or fp32, and a token's
result doesn't depend on how many others are computed with it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import njit, prange

from tinychat.kernels.numbers import COMPILED, array
from tinychat.kernels.tile import GROUP, MANY, ROWS, product_of_many, product_of_one, taken_by_many

_CODE: Final = {torch.uint8: np.uint8(0), torch.int8: np.int8(0)}
_SCALE: Final = {torch.float16: np.uint16(0), torch.float32: np.float32(0)}
"""What tells the compiled code the size of codes and scales."""
_LARGEST: Final = 32767


class BlockProduct:
    """x W^T by one matrix W [N, K]."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> None:
        """Keep the matrix.

        Args:
            codes: uint8 (of 4 bits, two in one) or int8, [N / 16, K / 32, ...] in the order of `tile.py`.
            scales: fp32 or fp16 [N / 16, K / 32, 16].
            zeros: Likewise; None for 8 bits.
        """
        self._kept = codes, scales, zeros  # their memory is used by address
        self._tiles, groups = scales.shape[:2]
        self._width = groups * GROUP
        code_step, scale_step = codes.stride(0) * codes.itemsize, scales.stride(0) * scales.itemsize
        zeros_at = 0 if zeros is None else zeros.data_ptr()
        self._at = codes.data_ptr(), code_step, scales.data_ptr(), zeros_at, scale_step, self._tiles
        self._kinds = _CODE[codes.dtype], _SCALE[scales.dtype]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return fp32 [T, N] for x [T, K], fp32, contiguous."""
        tokens = x.shape[0]
        assert x.shape[1] == self._width
        assert x.is_contiguous()
        assert x.dtype == torch.float32
        if tokens == 1:
            out = torch.empty(1, self._tiles * ROWS)
            _one(x.data_ptr(), self._width, *self._at, out.data_ptr(), *self._kinds)
            return out
        padded = taken_by_many(tokens)
        out = torch.empty(max(padded, tokens), self._tiles * ROWS)
        _many(x.data_ptr(), tokens, padded, self._width, *self._at, out.data_ptr(), *self._kinds)
        return out[:tokens]


@njit(**COMPILED)
def _round_group(x: Any, rounded: Any) -> Any:
    """Fill rounded [32], int16, from x [32]; return the scale, and the sum of what was rounded.

    A NaN or an infinity makes the scale one.
    """
    # As integers, the bits of absolute values have the order of the values; so ordered, a NaN is largest.
    top = np.int32(0)
    for i in range(GROUP):
        size = np.int32(np.float32(x[i]).view(np.int32) & np.int32(0x7FFFFFFF))
        top = size if size > top else top
    largest = np.int32(top).view(np.float32)
    scale = largest / np.float32(_LARGEST)
    inverse = np.float32(_LARGEST) / largest if largest > np.float32(1e-30) else np.float32(0)
    total = np.int32(0)
    for i in range(GROUP):
        value = np.int32(np.rint(x[i] * inverse))
        rounded[i] = value
        total += value
    return scale, scale * np.float32(total)


@njit(**COMPILED, parallel=True)
def _one(
    x: int, width: int, codes: int, code_step: int, scales: int, zeros: int, scale_step: int, tiles: int, out: int,
    code: Any, scale: Any,
) -> None:  # fmt: skip
    """Multiply by one token's activations; the steps lead from a tile's codes and scales to the next one's."""
    groups = width // GROUP
    source = array(x, width, np.float32(0))
    rounded = np.empty(width, dtype=np.int16)
    x_scales, x_sums = np.empty(groups, dtype=np.float32), np.empty(groups, dtype=np.float32)
    for g in range(groups):
        part = slice(g * GROUP, (g + 1) * GROUP)
        x_scales[g], x_sums[g] = _round_group(source[part], rounded[part])
    for tile in prange(tiles):
        # Taken here: Numba lets go of an array after its last use, and an address is none.
        at = rounded.ctypes.data, x_scales.ctypes.data, x_sums.ctypes.data
        here = codes + tile * code_step, scales + tile * scale_step, zeros + tile * scale_step
        target = out + tile * ROWS * 4
        product_of_one(code, scale, here[0], here[1], here[2], at[0], at[1], at[2], groups, target, tiles * ROWS)


@njit(**COMPILED, parallel=True)
def _many(
    x: int, tokens: int, padded: int, width: int, codes: int, code_step: int, scales: int, zeros: int,
    scale_step: int, tiles: int, out: int, code: Any, scale: Any,
) -> None:  # fmt: skip
    """Multiply by several tokens' activations: `padded` of them, of which the last may be none, MANY at a time, then
    those that are left one at a time. `out` has room for all of both.
    """
    groups, rows = width // GROUP, max(tokens, padded)
    source = array(x, (tokens, width), np.float32(0))
    rounded = np.zeros((rows, width), dtype=np.int16)
    x_scales, x_sums = np.zeros((rows, groups), dtype=np.float32), np.zeros((rows, groups), dtype=np.float32)
    for t in prange(tokens):
        for g in range(groups):
            part = slice(g * GROUP, (g + 1) * GROUP)
            x_scales[t, g], x_sums[t, g] = _round_group(source[t, part], rounded[t, part])
    for tile in prange(tiles):
        here = codes + tile * code_step, scales + tile * scale_step, zeros + tile * scale_step
        for t in range(0, padded, MANY):
            at = rounded[t].ctypes.data, x_scales[t].ctypes.data, x_sums[t].ctypes.data
            target = out + (t * tiles + tile) * ROWS * 4
            product_of_many(code, scale, here[0], here[1], here[2], at[0], at[1], at[2], groups, target, tiles * ROWS)
        for t in range(padded, tokens):
            at = rounded[t].ctypes.data, x_scales[t].ctypes.data, x_sums[t].ctypes.data
            target = out + (t * tiles + tile) * ROWS * 4
            product_of_one(code, scale, here[0], here[1], here[2], at[0], at[1], at[2], groups, target, tiles * ROWS)
