"""Products by a matrix that stays in its blocks: 4-bit or 8-bit codes with a scale a group of 32 columns.

The activations of a group are rounded to 16 bits, relative to the largest of them: an error of at most 1.5e-5 of it,
where a bf16 activation is off by up to 4e-3 of itself. Everything else is exact in integers or fp32, and a token's
result doesn't depend on how many others are computed with it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import njit

from tinychat.kernels.numbers import COMPILED, array
from tinychat.kernels.team import address_of, share, team
from tinychat.kernels.tile import GROUP, MANY, ROWS, product_of_many, product_of_one

_LARGEST: Final = 32767
_CHUNKS: Final = 8
"""Chunks a thread gets of a product: few enough to cost nothing, enough for a thread that is late."""

# What tells the compiled code the size of codes and scales.
_INT4, _INT8, _HALF, _SINGLE = np.uint8(0), np.int8(0), np.uint16(0), np.float32(0)

# Places in a product's arguments.
_X, _TOKENS, _GROUPS = 0, 1, 2
_CODES, _CODE_STEP, _SCALES, _ZEROS, _SCALE_STEP, _TILES, _TILES_A_CHUNK = 3, 4, 5, 6, 7, 8, 9
_ROUNDED, _X_SCALES, _X_SUMS = 10, 11, 12
_GROUP = 13
"""GROUP again: the compiler unrolls a loop whose length it knows, and only vectorises one whose length it doesn't."""
_OUT = 14


class BlockProduct:
    """x W^T by one matrix W [N, K]."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> None:
        """Keep the matrix.

        Args:
            codes: uint8 (of 4 bits, two in one) or int8, [N / 16, K / 32, ...] in the order of `tile.py`.
            scales: fp32 or fp16 [N / 16, K / 32, 16].
            zeros: Likewise; None for 8 bits.
        """
        self._tiles, groups = scales.shape[:2]
        self._width = groups * GROUP
        chunks = min(self._tiles, _CHUNKS * team().threads)
        self._tiles_a_chunk = -(-self._tiles // chunks)
        self._chunks = -(-self._tiles // self._tiles_a_chunk)
        kind = codes.dtype, scales.dtype
        self._one, self._many = address_of(_ONE[kind]), address_of(_MANY[kind])
        # Room for the rounded activations of one token; memory that is used by address is kept here.
        room = torch.empty(self._width, dtype=torch.int16), torch.empty(groups), torch.empty(groups)
        self._kept = codes, scales, zeros, room
        self._arguments = np.array(
            [
                0, 1, groups,
                codes.data_ptr(), codes.stride(0) * codes.itemsize, scales.data_ptr(),
                0 if zeros is None else zeros.data_ptr(), scales.stride(0) * scales.itemsize,
                self._tiles, self._tiles_a_chunk, *(r.data_ptr() for r in room), GROUP, 0,
            ],
            dtype=np.int64,
        )  # fmt: skip
        self._at = self._arguments.ctypes.data

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return fp32 [T, N] for x [T, K], fp32, contiguous."""
        tokens = x.shape[0]
        assert x.shape[1] == self._width
        assert x.is_contiguous()
        assert x.dtype == torch.float32
        if tokens == 1:
            out = torch.empty(1, self._tiles * ROWS)
            mates = team()
            mates.wake()
            _run_one(mates.address, self._one, self._at, self._chunks, x.data_ptr(), out.data_ptr())
            return out
        padded = tokens + -tokens % MANY
        out = torch.empty(padded, self._tiles * ROWS)
        groups = self._width // GROUP
        rounded = torch.zeros(padded, self._width, dtype=torch.int16)
        room = rounded, torch.zeros(padded, groups), torch.zeros(padded, groups)
        arguments = self._arguments.copy()
        arguments[[_X, _TOKENS, _TILES_A_CHUNK, _OUT]] = x.data_ptr(), tokens, 1, out.data_ptr()
        arguments[[_ROUNDED, _X_SCALES, _X_SUMS]] = [r.data_ptr() for r in room]
        mates = team()
        mates.wake()
        share(mates.address, _ROUND, arguments.ctypes.data, tokens)
        share(mates.address, self._many, arguments.ctypes.data, self._tiles)
        mates.rest()  # torch computes next, with threads of its own
        return out[:tokens]


@njit(**COMPILED)
def _round_group(x: Any, rounded: Any, size: int) -> Any:
    """Round x [size] into `rounded`, int16; return the scale, and the sum of what was rounded.

    A NaN or an infinity makes the scale one.
    """
    # As integers, the bits of absolute values have the order of the values; so ordered, a NaN is largest.
    top = np.int32(0)
    for i in range(size):
        bits = np.int32(np.float32(x[i]).view(np.int32) & np.int32(0x7FFFFFFF))
        top = max(top, bits)
    largest = np.int32(top).view(np.float32)
    scale = largest / np.float32(_LARGEST)
    inverse = np.float32(_LARGEST) / largest if largest > np.float32(1e-30) else np.float32(0)
    total = np.float32(0)  # of whole numbers below 2^24: exact
    for i in range(size):
        value = np.floor(x[i] * inverse + np.float32(0.5))
        rounded[i] = np.int16(np.int32(value))
        total += value
    return scale, scale * total


@njit(**COMPILED)
def _round_token(arguments: int, token: int) -> None:
    """Round the activations of one token."""
    a = array(arguments, _OUT + 1, np.int64(0))
    groups, size = a[_GROUPS], a[_GROUP]
    scales = array(a[_X_SCALES] + token * groups * 4, groups, _SINGLE)
    sums = array(a[_X_SUMS] + token * groups * 4, groups, _SINGLE)
    for g in range(groups):
        place = token * groups * size + g * size
        x, rounded = array(a[_X] + place * 4, size, _SINGLE), array(a[_ROUNDED] + place * 2, size, np.int16(0))
        scales[g], sums[g] = _round_group(x, rounded, size)


@njit(**COMPILED)
def _run_one(team: int, function: int, arguments: int, chunks: int, x: int, out: int) -> None:
    a = array(arguments, _OUT + 1, np.int64(0))
    a[_X], a[_OUT] = x, out
    _round_token(arguments, 0)
    share(team, function, arguments, chunks)


@njit(**COMPILED)
def _tiles_of_one(arguments: int, chunk: int, code: Any, scale: Any) -> None:
    """Multiply a chunk of tiles by the activations of one token."""
    a = array(arguments, _OUT + 1, np.int64(0))
    groups, tiles = a[_GROUPS], a[_TILES]
    for tile in range(chunk * a[_TILES_A_CHUNK], min((chunk + 1) * a[_TILES_A_CHUNK], tiles)):
        codes, scales = a[_CODES] + tile * a[_CODE_STEP], a[_SCALES] + tile * a[_SCALE_STEP]
        zeros, out = a[_ZEROS] + tile * a[_SCALE_STEP], a[_OUT] + tile * ROWS * 4
        x, x_scales, x_sums = a[_ROUNDED], a[_X_SCALES], a[_X_SUMS]
        product_of_one(code, scale, codes, scales, zeros, x, x_scales, x_sums, groups, out, tiles * ROWS)


@njit(**COMPILED)
def _tile_of_many(arguments: int, tile: int, code: Any, scale: Any) -> None:
    """Multiply a tile by the activations of all tokens; the room is for a multiple of MANY tokens."""
    a = array(arguments, _OUT + 1, np.int64(0))
    groups, tiles = a[_GROUPS], a[_TILES]
    codes, scales = a[_CODES] + tile * a[_CODE_STEP], a[_SCALES] + tile * a[_SCALE_STEP]
    zeros = a[_ZEROS] + tile * a[_SCALE_STEP]
    for t in range(0, a[_TOKENS], MANY):
        x, out = a[_ROUNDED] + t * groups * GROUP * 2, a[_OUT] + (t * tiles + tile) * ROWS * 4
        x_scales, x_sums = a[_X_SCALES] + t * groups * 4, a[_X_SUMS] + t * groups * 4
        product_of_many(code, scale, codes, scales, zeros, x, x_scales, x_sums, groups, out, tiles * ROWS)


# One function for each kind of matrix: a job is called by the address of a function of two numbers.


@njit(**COMPILED)
def _one_int4_half(arguments: int, chunk: int) -> None:
    _tiles_of_one(arguments, chunk, _INT4, _HALF)


@njit(**COMPILED)
def _one_int4_single(arguments: int, chunk: int) -> None:
    _tiles_of_one(arguments, chunk, _INT4, _SINGLE)


@njit(**COMPILED)
def _one_int8_half(arguments: int, chunk: int) -> None:
    _tiles_of_one(arguments, chunk, _INT8, _HALF)


@njit(**COMPILED)
def _one_int8_single(arguments: int, chunk: int) -> None:
    _tiles_of_one(arguments, chunk, _INT8, _SINGLE)


@njit(**COMPILED)
def _many_int4_half(arguments: int, tile: int) -> None:
    _tile_of_many(arguments, tile, _INT4, _HALF)


@njit(**COMPILED)
def _many_int4_single(arguments: int, tile: int) -> None:
    _tile_of_many(arguments, tile, _INT4, _SINGLE)


@njit(**COMPILED)
def _many_int8_half(arguments: int, tile: int) -> None:
    _tile_of_many(arguments, tile, _INT8, _HALF)


@njit(**COMPILED)
def _many_int8_single(arguments: int, tile: int) -> None:
    _tile_of_many(arguments, tile, _INT8, _SINGLE)


_ONE: Final = {
    (torch.uint8, torch.float16): _one_int4_half,
    (torch.uint8, torch.float32): _one_int4_single,
    (torch.int8, torch.float16): _one_int8_half,
    (torch.int8, torch.float32): _one_int8_single,
}
_MANY: Final = {
    (torch.uint8, torch.float16): _many_int4_half,
    (torch.uint8, torch.float32): _many_int4_single,
    (torch.int8, torch.float16): _many_int8_half,
    (torch.int8, torch.float32): _many_int8_single,
}
_ROUND: Final = address_of(_round_token)
