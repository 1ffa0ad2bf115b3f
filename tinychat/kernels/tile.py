"""One tile of a product by a matrix in blocks, written in LLVM's vector types, which Numba has no words for.

A tile is 16 rows of the matrix. For a group of 32 columns it is

    acc[row] += x_scale * scale[row] * sum_k x[k] code[row, k]  +  x_sum * zero[row]

where x is the group of activations rounded to 16 bits (`block_product.py`). The inner sum is of integers and exact: a
pair of columns at a time, 16 bits times 16 bits into 32, for which every processor since 2000 has one instruction
(`pmaddwd` and its like); LLVM picks the one of the machine at hand. Largest sum: 32 * 127 * 32767 < 2^31.

Columns lie in memory in the order they are used. Of 4 columns, a chunk of 32 bytes holds columns 0 and 1 of each row in
its low halves and columns 2 and 3 in its high ones (4-bit codes); 8-bit codes take two such chunks.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

ROWS: Final = 16
"""Rows of a tile."""
GROUP: Final = 32
"""Columns that share a scale."""

MANY: Final = 8
"""Tokens that `product_of_many` takes at once: enough independent sums to keep the multipliers busy."""

_ALONE: Final = 2
"""Tokens over a multiple of MANY that are multiplied one by one; more of them take as long as MANY."""
LINE: Final = 64
"""Bytes that memory is read by."""
AHEAD: Final = 2048
"""Bytes ahead of their use at which codes are asked for: the processor's own look ahead ends with a page of memory."""
_PAIRS: Final = GROUP // 2
_BYTE, _WORD, INT, LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT, _HALF = ir.FloatType(), ir.HalfType()
_REORDER: Final = ("contract", "reassoc")


def taken_by_many(tokens: int) -> int:
    """Return how many tokens are multiplied MANY at a time: a multiple of it.

    Where that is more than there are, the last ones are none; where it is less, those left over go one by one.
    """
    left = tokens % MANY
    return tokens - left if left <= _ALONE else tokens - left + MANY


def tile_bytes(bits: int) -> int:
    """Return the bytes that the codes of a tile take a group."""
    return ROWS * GROUP * bits // 8


def _product(tokens: int) -> Any:
    """Return the function for compiled code that multiplies a tile by the activations of so many tokens."""

    def product(
        typing: Any, code: Any, scale: Any, codes: Any, scales: Any, zeros: Any, x: Any, x_scales: Any, x_sums: Any,
        groups: Any, out: Any, stride: Any,
    ) -> Any:  # fmt: skip
        """Multiply a tile.

        Args:
            typing: Numba's.
            code: Any uint8 for codes of 4 bits, any int8 for 8 bits.
            scale: Any uint16 where scales and zeros are in half precision, any float32 where they are in single.
            codes: Address of the tile's codes.
            scales: Address of its scales.
            zeros: Address of its zeros; not read for 8 bits, which have none.
            x: Address of the first token's activations, int16 [T, K].
            x_scales: Of its scales, fp32 [T, K / 32].
            x_sums: Of its sums, fp32 [T, K / 32].
            groups: K / 32.
            out: Address of the first token's first output, fp32 [T, stride].
            stride: Outputs of a token.
        """
        del typing, codes, scales, zeros, x, x_scales, x_sums, groups, out, stride
        bits = 4 if code == types.uint8 else 8
        half = scale == types.uint16

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            _generate(builder, arguments[2:], tokens, bits, half)
            return context.get_dummy_value()

        return types.void(code, scale, *[types.int64] * 9), generate

    return intrinsic(product)


product_of_one = _product(1)
product_of_many = _product(MANY)


def _generate(builder: Any, arguments: Any, tokens: int, bits: int, half: bool) -> None:
    codes, scales, zeros, x, x_scales, x_sums, groups, out, stride = arguments
    scale_type, scale_bytes = (_HALF, 2) if half else (FLOAT, 4)

    def load(address: Any, offset: Any, kind: Any, align: int) -> Any:
        return builder.load(builder.inttoptr(builder.add(address, offset), kind.as_pointer()), align=align)

    def load_scales(address: Any, group: Any) -> Any:
        offset = builder.mul(group, number(ROWS * scale_bytes))
        values = load(address, offset, ir.VectorType(scale_type, ROWS), 16)
        return builder.fpext(values, ir.VectorType(FLOAT, ROWS)) if half else values

    def load_of_token(address: Any, place: Any) -> Any:
        return splat(builder, load(address, builder.mul(place, number(4)), FLOAT, 4))

    sums = [cgutils.alloca_once_value(builder, _zeros(FLOAT)) for _ in range(tokens)]
    dots = [cgutils.alloca_once(builder, ir.VectorType(INT, ROWS)) for _ in range(tokens)]
    with cgutils.for_range(builder, groups, intp=LONG) as loop:
        tile = builder.add(codes, builder.mul(loop.index, number(tile_bytes(bits))))
        if tokens == 1:  # more of them take longer than the memory does
            prefetch(builder, builder.add(tile, number(AHEAD)), tile_bytes(bits))
        # Of each token, where this group is among all groups of all tokens.
        places = [builder.add(builder.mul(groups, number(token)), loop.index) for token in range(tokens)]
        for dot in dots:
            builder.store(_zeros(INT), dot)
        with cgutils.for_range(builder, number(_PAIRS // 2), intp=LONG) as chunks:
            for pair, words in enumerate(_code_pairs(builder, load, tile, chunks.index, bits)):
                within = builder.add(builder.mul(chunks.index, number(8)), number(4 * pair))
                for place, dot in zip(places, dots, strict=True):
                    offset = builder.add(builder.mul(place, number(2 * GROUP)), within)
                    both = splat(builder, load(x, offset, INT, 4))
                    more = _dot_pairs(builder, words, builder.bitcast(both, ir.VectorType(_WORD, 2 * ROWS)))
                    builder.store(builder.add(builder.load(dot), more), dot)
        scale = load_scales(scales, loop.index)
        zero = load_scales(zeros, loop.index) if bits == 4 else None
        for place, dot, total in zip(places, dots, sums, strict=True):
            value = builder.sitofp(builder.load(dot), ir.VectorType(FLOAT, ROWS))
            value = builder.fmul(value, load_of_token(x_scales, place), flags=_REORDER)
            value = builder.fmul(value, scale, flags=_REORDER)
            if zero is not None:
                shift = builder.fmul(load_of_token(x_sums, place), zero, flags=_REORDER)
                value = builder.fadd(value, shift, flags=_REORDER)
            builder.store(builder.fadd(builder.load(total), value, flags=_REORDER), total)
    for token, total in enumerate(sums):
        offset = builder.mul(stride, number(4 * token))
        target = builder.inttoptr(builder.add(out, offset), ir.VectorType(FLOAT, ROWS).as_pointer())
        builder.store(builder.load(total), target, align=4)


def _code_pairs(builder: Any, load: Any, tile: Any, chunk: Any, bits: int) -> Any:
    """Yield, for each of the two pairs of columns in a chunk, the codes of all rows as 32 words: row 0's two, ..."""
    words, size = ir.VectorType(_WORD, 2 * ROWS), 2 * ROWS
    if bits == 8:
        for half in range(2):
            offset = builder.add(builder.mul(chunk, number(2 * size)), number(half * size))
            yield builder.sext(load(tile, offset, ir.VectorType(_BYTE, size), 32), words)
    else:
        wide = builder.zext(load(tile, builder.mul(chunk, number(size)), ir.VectorType(_BYTE, size), 32), words)
        yield builder.and_(wide, ir.Constant(words, [15] * size))
        yield builder.lshr(wide, ir.Constant(words, [4] * size))


def _dot_pairs(builder: Any, left: Any, right: Any) -> Any:
    """Multiply 32 words by 32 words and add the products in pairs: 16 ints."""
    ints = ir.VectorType(INT, 2 * ROWS)
    products = builder.mul(builder.sext(left, ints), builder.sext(right, ints))
    nothing = ir.Constant(ints, ir.Undefined)
    lanes = ir.VectorType(INT, ROWS)
    even = builder.shuffle_vector(products, nothing, ir.Constant(lanes, list(range(0, 2 * ROWS, 2))))
    odd = builder.shuffle_vector(products, nothing, ir.Constant(lanes, list(range(1, 2 * ROWS, 2))))
    return builder.add(even, odd)


def prefetch(builder: Any, address: Any, size: int) -> None:
    """Ask for memory that will be read; it need not exist."""
    kind = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), INT, INT, INT])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, often, data = (ir.Constant(INT, value) for value in (0, 3, 1))
    for line in range(0, size, LINE):
        place = builder.inttoptr(builder.add(address, number(line)), _BYTE.as_pointer())
        builder.call(function, [place, read, often, data])


def multiply_add(builder: Any, left: Any, right: Any, total: Any) -> Any:
    """Return left * right + total, of 16 fp32 each, rounded once where the processor can.

    Whether it is must not be LLVM's choice: of the same lines it makes another one elsewhere, and another result.
    """
    if "+fma" in str(config.CPU_FEATURES):
        kind = ir.FunctionType(left.type, [left.type] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{ROWS}f32")
        return builder.call(function, [left, right, total])
    return builder.fadd(builder.fmul(left, right), total)


def splat(builder: Any, value: Any) -> Any:
    """Return 16 copies of a number."""
    nothing = ir.Constant(ir.VectorType(value.type, ROWS), ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(INT, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(INT, ROWS), [0] * ROWS))


def _zeros(kind: Any) -> Any:
    return ir.Constant(ir.VectorType(kind, ROWS), [0.0 if kind is FLOAT else 0] * ROWS)


def number(value: int) -> Any:
    return ir.Constant(LONG, value)
