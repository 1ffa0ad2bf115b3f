"""The two products of attention over a block of the cache, in LLVM's vector types (see tile.py).

Keys lie in tiles of 16 positions: of each two components of a head, the 16 positions' pairs. So the scores of a query
over a tile are a vector of 16 sums, to which each component adds q[i] * k[:, i], and no sum has to be added up across a
vector. Values lie position by position: the mix is a vector of 16 components, to which each position adds w[j] * v[j].
Four queries share what is read and widened to fp32.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinychat.kernels.tile import FLOAT, INT, LINE, LONG, ROWS, multiply_add, number, prefetch, splat

TILE: Final = ROWS
"""Positions of a tile of keys, and components of a head that are mixed at once."""
QUERIES: Final = 4
"""Queries that share a pass over keys or values."""
_FLOATS: Final = ir.VectorType(FLOAT, TILE)
_INTS: Final = ir.VectorType(INT, TILE)
_SHORTS: Final = ir.VectorType(ir.IntType(16), TILE)
_BYTES: Final = ir.VectorType(ir.IntType(8), TILE)


@intrinsic
def scores(typing: Any, like: Any, keys: Any, query: Any, size: Any, out: Any, stride: Any) -> Any:
    """Fill out [QUERIES, stride], its first 16 columns, with the products of queries and the keys of a tile.

    Args:
        typing: Numba's.
        like: Any uint16 where the keys are bf16, float32, or int8 where they are codes.
        keys: Address of the tile, [size / 2, 16, 2].
        query: Address of fp32 [QUERIES, size].
        size: Components of a head, even.
        out: Address, fp32.
        stride: Numbers from one query's scores to the next one's.
    """
    del typing, keys, query, size, out, stride

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        keys, query, size, out, stride = arguments[1:]
        # Sums of their own for even and odd components: a processor adds to eight while it waits for the first.
        sums = [_sums(builder) for _ in range(2)]
        with cgutils.for_range(builder, builder.udiv(size, number(2)), intp=LONG) as loop:
            at = builder.add(keys, builder.mul(loop.index, number(2 * TILE * _bytes(like))))
            for component, key in enumerate(_pair(builder, at, like)):
                place = builder.add(builder.mul(loop.index, number(8)), number(4 * component))
                _add(builder, sums[component], key, builder.add(query, place), builder.mul(size, number(4)))
        for row, (even, odd) in enumerate(zip(*sums, strict=True)):
            total = builder.fadd(builder.load(even), builder.load(odd))
            _store(builder, total, out, builder.mul(stride, number(4 * row)))
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 5), generate


@intrinsic
def fetch(typing: Any, address: Any, size: Any) -> Any:
    """Ask for `size` bytes of memory that will be read."""
    del typing, address, size

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        address, size = arguments
        with cgutils.for_range(builder, builder.udiv(size, number(LINE)), intp=LONG) as loop:
            prefetch(builder, builder.add(address, builder.mul(loop.index, number(LINE))), LINE)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _mix(tiles: int) -> Any:
    """Return the function for compiled code that mixes 16 * tiles components of a head."""

    def mix(typing: Any, like: Any, values: Any, size: Any, weights: Any, stride: Any, count: Any, out: Any) -> Any:
        """Add to the first columns of out [QUERIES, size] the sum of values weighted by weights [QUERIES, stride].

        Args:
            typing: Numba's.
            like: As of `scores`.
            values: Address of the first component of the first position, of [positions, size].
            size: Components of a head.
            weights: Address, fp32.
            stride: Numbers from one query's weights to the next one's.
            count: Positions.
            out: Address, fp32.
        """
        del typing, values, size, weights, stride, count, out

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            values, size, weights, stride, count, out = arguments[1:]
            sums = [_sums(builder) for _ in range(tiles)]
            with cgutils.for_range(builder, count, intp=LONG) as loop:
                at = builder.add(values, builder.mul(loop.index, builder.mul(size, number(_bytes(like)))))
                place = builder.add(weights, builder.mul(loop.index, number(4)))
                for tile, own in enumerate(sums):
                    value = _sixteen(builder, builder.add(at, number(tile * TILE * _bytes(like))), like)
                    _add(builder, own, value, place, builder.mul(stride, number(4)))
            for tile, own in enumerate(sums):
                for row, total in enumerate(own):
                    offset = builder.add(builder.mul(size, number(4 * row)), number(4 * TILE * tile))
                    before = _load(builder, builder.add(out, offset), _FLOATS, 4)
                    _store(builder, builder.fadd(before, builder.load(total)), out, offset)
            return context.get_dummy_value()

        return types.void(like, *[types.int64] * 6), generate

    return intrinsic(mix)


mix_tile = _mix(1)
mix_two_tiles = _mix(2)


def _sums(builder: Any) -> list[Any]:
    return [cgutils.alloca_once_value(builder, ir.Constant(_FLOATS, [0.0] * TILE)) for _ in range(QUERIES)]


def _add(builder: Any, sums: list[Any], values: Any, factors: Any, step: Any) -> None:
    """Add to each query's sum the values times its factor; from one factor to the next it is `step` bytes."""
    for row, total in enumerate(sums):
        factor = _load(builder, builder.add(factors, builder.mul(step, number(row))), FLOAT, 4)
        builder.store(multiply_add(builder, values, splat(builder, factor), builder.load(total)), total)


def _bytes(like: Any) -> int:
    return int(like.bitwidth) // 8


def _sixteen(builder: Any, at: Any, like: Any) -> Any:
    """Return 16 numbers as fp32."""
    if like == types.float32:
        return _load(builder, at, _FLOATS, 4)
    if like == types.int8:
        return builder.sitofp(_load(builder, at, _BYTES, 1), _FLOATS)
    wide = builder.zext(_load(builder, at, _SHORTS, 2), _INTS)
    return builder.bitcast(builder.shl(wide, _splatted(_INTS, 16)), _FLOATS)


def _pair(builder: Any, at: Any, like: Any) -> tuple[Any, Any]:
    """Return the first and the second of each of 16 pairs, as fp32."""
    if like == types.float32:
        both = [_load(builder, builder.add(at, number(4 * TILE * half)), _FLOATS, 4) for half in range(2)]
        places = [ir.Constant(_INTS, list(range(first, 2 * TILE, 2))) for first in range(2)]
        return builder.shuffle_vector(*both, places[0]), builder.shuffle_vector(*both, places[1])
    if like == types.int8:
        both = _load(builder, at, _SHORTS, 2)
        first = builder.ashr(builder.shl(both, _splatted(_SHORTS, 8)), _splatted(_SHORTS, 8))
        second = builder.ashr(both, _splatted(_SHORTS, 8))
        return builder.sitofp(first, _FLOATS), builder.sitofp(second, _FLOATS)
    both = _load(builder, at, _INTS, 4)
    first = builder.shl(both, _splatted(_INTS, 16))
    second = builder.and_(both, _splatted(_INTS, 0xFFFF0000))
    return builder.bitcast(first, _FLOATS), builder.bitcast(second, _FLOATS)


def _splatted(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * TILE)


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _store(builder: Any, value: Any, address: Any, offset: Any) -> None:
    target = builder.inttoptr(builder.add(address, offset), _FLOATS.as_pointer())
    builder.store(value, target, align=4)
