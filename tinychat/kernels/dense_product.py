"""Products by a dense matrix: of few tokens bound by how fast memory is read, of many by the multipliers.

A tile is 16 rows of the matrix: a vector of 16 sums a token, to which each column adds x[k] * w[:, k], in fp32. Of
bf16, two columns lie side by side in 32 bits a row, so that a shift makes one of them fp32 and a mask the other; of
fp32, column follows column. Each token has two sums, of even and of odd columns, however many tokens there are: its
result is the same, bit for bit.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from tinychat.kernels.numbers import COMPILED
from tinychat.kernels.tile import (
    AHEAD,
    FLOAT,
    INT,
    LONG,
    MANY,
    ROWS,
    multiply_add,
    number,
    prefetch,
    splat,
    taken_by_many,
)

_FLOATS: Final = ir.VectorType(FLOAT, ROWS)
_INTS: Final = ir.VectorType(INT, ROWS)


class DenseProduct:
    """x W^T by one matrix W [N, K], N a multiple of 16 and K of 2."""

    def __init__(self, tiles: torch.Tensor) -> None:
        """Keep the matrix: bf16 [N / 16, K / 2, 16, 2] or fp32 [N / 16, K, 16], contiguous."""
        self._tiles = tiles  # its memory is used by address
        self._count = tiles.shape[0]
        self._width = tiles[0].numel() // ROWS
        like = np.float32(0) if tiles.dtype == torch.float32 else np.uint16(0)
        self._at = like, tiles.data_ptr(), tiles.stride(0) * tiles.itemsize, self._count

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return fp32 [T, N] for x [T, K], fp32, contiguous."""
        tokens = x.shape[0]
        assert x.shape[1] == self._width
        assert x.is_contiguous()
        assert x.dtype == torch.float32
        rows = max(taken_by_many(tokens), tokens) if tokens > 1 else 1
        out = torch.empty(rows, self._count * ROWS)
        if tokens == 1:
            _one(x.data_ptr(), self._width, *self._at, out.data_ptr())
            return out
        if rows > tokens:
            x = torch.cat((x, x.new_zeros(rows - tokens, self._width)))
        _many(x.data_ptr(), rows, self._width, *self._at, out.data_ptr())
        return out[:tokens]


def _product(tokens: int) -> Any:
    """Return the function for compiled code that multiplies a tile by the activations of so many tokens."""

    def product(typing: Any, like: Any, tile: Any, x: Any, width: Any, out: Any, stride: Any) -> Any:
        """Multiply a tile.

        Args:
            typing: Numba's.
            like: Any float32 for weights of fp32, any uint16 for bf16.
            tile: Address of the tile's weights.
            x: Address of the first token's activations, fp32 [T, K].
            width: K.
            out: Address of the first token's first output, fp32 [T, stride].
            stride: Outputs of a token.
        """
        del typing, tile, x, width, out, stride

        columns = _wide_columns if like == types.float32 else _columns

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            _generate(builder, arguments[1:], tokens, columns)
            return context.get_dummy_value()

        return types.void(like, *[types.int64] * 5), generate

    return intrinsic(product)


product_of_one = _product(1)
product_of_many = _product(MANY)


def _generate(builder: Any, arguments: Any, tokens: int, columns: Any) -> None:
    tile, x, width, out, stride = arguments
    nothing = ir.Constant(_FLOATS, [0.0] * ROWS)
    sums = [[cgutils.alloca_once_value(builder, nothing) for _ in range(2)] for _ in range(tokens)]
    with cgutils.for_range(builder, builder.udiv(width, number(2)), intp=LONG) as loop:
        weights = columns(builder, tile, loop.index)
        first = builder.mul(loop.index, number(8))
        for token, both in enumerate(sums):
            place = builder.add(first, builder.mul(width, number(4 * token)))
            for column, (weight, total) in enumerate(zip(weights, both, strict=True)):
                at = builder.add(x, builder.add(place, number(4 * column)))
                value = splat(builder, builder.load(builder.inttoptr(at, FLOAT.as_pointer()), align=4))
                builder.store(multiply_add(builder, weight, value, builder.load(total)), total)
    for token, (even, odd) in enumerate(sums):
        offset = builder.mul(stride, number(4 * token))
        target = builder.inttoptr(builder.add(out, offset), _FLOATS.as_pointer())
        builder.store(builder.fadd(builder.load(even), builder.load(odd)), target, align=4)


def _columns(builder: Any, tile: Any, pair: Any) -> tuple[Any, Any]:
    """Return two columns of bf16 as fp32: the bits of a bf16 are the upper half of the same fp32's."""
    at = builder.add(tile, builder.mul(pair, number(4 * ROWS)))
    prefetch(builder, builder.add(at, number(AHEAD)), 4 * ROWS)
    both = builder.load(builder.inttoptr(at, _INTS.as_pointer()), align=32)
    even = builder.shl(both, ir.Constant(_INTS, [16] * ROWS))
    odd = builder.and_(both, ir.Constant(_INTS, [0xFFFF0000] * ROWS))
    return builder.bitcast(even, _FLOATS), builder.bitcast(odd, _FLOATS)


def _wide_columns(builder: Any, tile: Any, pair: Any) -> tuple[Any, Any]:
    """Return two columns of fp32."""
    at = builder.add(tile, builder.mul(pair, number(8 * ROWS)))
    prefetch(builder, builder.add(at, number(AHEAD)), 8 * ROWS)
    even, odd = (builder.inttoptr(builder.add(at, number(n * 4 * ROWS)), _FLOATS.as_pointer()) for n in range(2))
    return builder.load(even, align=64), builder.load(odd, align=64)


@njit(**COMPILED, parallel=True)
def _one(x: int, width: int, like: Any, tile: int, step: int, tiles: int, out: int) -> None:
    """Multiply by one token's activations; `step` leads from a tile to the next one."""
    for n in prange(tiles):
        product_of_one(like, tile + n * step, x, width, out + n * ROWS * 4, tiles * ROWS)


@njit(**COMPILED, parallel=True)
def _many(
    x: int, tokens: int, width: int, like: Any, tile: int, step: int, tiles: int, out: int
) -> None:  # fmt: skip
    """Multiply by several tokens' activations, MANY at a time and then one by one."""
    for n in prange(tiles):
        for t in range(0, tokens - tokens % MANY, MANY):
            target = out + (t * tiles + n) * ROWS * 4
            product_of_many(like, tile + n * step, x + t * width * 4, width, target, tiles * ROWS)
        for t in range(tokens - tokens % MANY, tokens):
            target = out + (t * tiles + n) * ROWS * 4
            product_of_one(like, tile + n * step, x + t * width * 4, width, target, tiles * ROWS)
