"""How numbers are stored: plain ones, and blocks of small codes that share a scale.

Names are those of the files. Layouts: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and ggml-common.h.
Only the standard library and NumPy are needed here, so that headers can be read before torch is imported.

A block format is unpacked here where its weights are w = code * scale + zero with a scale for 32 of them and codes that
fit the products there are: 4 bits with a zero, or 8 bits without. Others have a scale for 16 weights (Q2_K, Q3_K, Q6_K,
NVFP4, IQ2_XS, IQ2_S, IQ1_M), codes of 5 bits with a zero (Q5_1, Q5_K), or codes that stand for rows of long tables (the
rest of IQ1 to IQ3); or they are rare (TQ1_0, TQ2_0). Those the gguf package dequantises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PLAIN: Final[dict[str, str]] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types that are stored a number at a time, and the name of their torch dtype."""

GROUP: Final = 32
"""Weights that share one scale, in every block format that is unpacked here."""

SUPERBLOCK: Final = 256
"""Weights of a block whose groups' scales are themselves small codes of one scale."""

Unpack = Callable[[NDArray[Any], NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]], None]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A block format whose weights are w = code * scale + zero, in fp32, a scale and a zero for `GROUP` weights."""

    layout: np.dtype[Any]
    """One block as the file holds it."""
    bits: int
    """4: codes are 0 to 15. 8: codes are int8, whose bytes `unpack` gives."""
    unpack: Unpack
    """(blocks [n], codes [n, groups, GROUP], scale [n, groups], zero [n, groups]): fill the last three from the first.

    Of 8 bits, zero is left as it is: 0.
    """
    weights: int = GROUP
    """Of one block."""


def _nibbles(packed: NDArray[np.uint8], codes: NDArray[np.uint8]) -> None:
    """Fill codes [..., 2 h] from bytes [..., h]: low nibbles are the first half, high nibbles the second."""
    half = packed.shape[-1]
    np.bitwise_and(packed, 15, out=codes[..., :half])
    np.right_shift(packed, 4, out=codes[..., half:])


def _q4_0(
    blocks: NDArray[Any], codes: NDArray[np.uint8], scale: NDArray[np.float32], zero: NDArray[np.float32]
) -> None:
    """w = (code - 8) * d. The product 8 * d is exact in fp32, and so is the difference: d has 11 bits."""
    _nibbles(blocks["codes"], codes[:, 0])
    scale[:, 0] = blocks["d"]
    np.multiply(scale, np.float32(-8), out=zero)


def _q4_1(
    blocks: NDArray[Any], codes: NDArray[np.uint8], scale: NDArray[np.float32], zero: NDArray[np.float32]
) -> None:
    """w = code * d + m, rounded once: the product is exact."""
    _nibbles(blocks["codes"], codes[:, 0])
    scale[:, 0] = blocks["d"]
    zero[:, 0] = blocks["m"]


def _q4_k(
    blocks: NDArray[Any], codes: NDArray[np.uint8], scale: NDArray[np.float32], zero: NDArray[np.float32]
) -> None:
    """w = code * (d * s) - dmin * m, with s and m of 6 bits: the last two products are exact in fp32.

    Of the eight s and m, byte i of `low` has the first four s in its low 6 bits, byte i of `mid` the first four m; byte
    i of `high` has the low 4 bits of the last four s and m, whose high 2 bits are the high ones of `low` and `mid`.
    """
    _nibbles(blocks["codes"].reshape(-1, 4, GROUP), codes.reshape(-1, 4, 2 * GROUP))
    low, mid, high = np.split(blocks["scales"], 3, axis=1)
    d, dmin = (blocks[name].astype(np.float32)[:, None] for name in ("d", "dmin"))
    np.multiply(d, np.hstack((low & 63, high & 15 | low >> 2 & 48)), out=scale)
    np.multiply(-dmin, np.hstack((mid & 63, high >> 4 | mid >> 2 & 48)), out=zero)


def _q5_0(blocks: NDArray[Any], codes: NDArray[np.uint8], scale: NDArray[np.float32], _: NDArray[np.float32]) -> None:
    """w = (code - 16) * d: the difference is the code here; the codes' fifth bits stand apart."""
    _nibbles(blocks["codes"], codes[:, 0])
    fifth = np.unpackbits(blocks["fifth"], axis=1, bitorder="little")
    np.add(codes[:, 0], (fifth << 4) - np.uint8(16), out=codes[:, 0])  # wraps around, as int8 has it
    scale[:, 0] = blocks["d"]


def _q8_0(blocks: NDArray[Any], codes: NDArray[np.uint8], scale: NDArray[np.float32], _: NDArray[np.float32]) -> None:
    """w = code * d, exact in fp32."""
    codes[:, 0] = blocks["codes"]
    scale[:, 0] = blocks["d"]


_IQ4: Final = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), "i1").view("u1")
"""The sixteen codes of IQ4_NL and IQ4_XS, closer to each other where weights are frequent."""

_E2M1: Final = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), "i1").view("u1")
"""Twice the sixteen numbers of sign, 2 bits of exponent and 1 of mantissa (OCP Microscaling Formats 1.0)."""


def _iq4_nl(blocks: NDArray[Any], codes: NDArray[np.uint8], scale: NDArray[np.float32], _: NDArray[np.float32]) -> None:
    """w = table[index] * d, exact in fp32."""
    _nibbles(blocks["codes"], codes[:, 0])
    codes[...] = _IQ4[codes]
    scale[:, 0] = blocks["d"]


def _iq4_xs(blocks: NDArray[Any], codes: NDArray[np.uint8], scale: NDArray[np.float32], _: NDArray[np.float32]) -> None:
    """w = table[index] * (d * (s - 32)), with s of 6 bits: four in a nibble of `low`, two in `high`."""
    _nibbles(blocks["codes"].reshape(-1, 8, GROUP // 2), codes)
    codes[...] = _IQ4[codes]
    low = blocks["low"][:, :, None] >> np.array([0, 4], dtype=np.uint8) & 15
    high = blocks["high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low.reshape(-1, 8) | high << 4).astype(np.float32) - np.float32(32)
    np.multiply(blocks["d"].astype(np.float32)[:, None], scales, out=scale)


def _mxfp4(blocks: NDArray[Any], codes: NDArray[np.uint8], scale: NDArray[np.float32], _: NDArray[np.float32]) -> None:
    """w = table[index] * 2^(e - 128), half of the format's own scale: the table is twice the format's numbers."""
    _nibbles(blocks["codes"], codes[:, 0])
    codes[...] = _E2M1[codes]
    scale[:, 0] = np.ldexp(np.float32(1), blocks["e"].astype(np.int32) - 128)


_D: Final = ("d", "<f2")
_HALF: Final = ("codes", "u1", GROUP // 2)

BLOCKS: Final[dict[str, BlockFormat]] = {
    "Q4_0": BlockFormat(np.dtype([_D, _HALF]), 4, _q4_0),
    "Q4_1": BlockFormat(np.dtype([_D, ("m", "<f2"), _HALF]), 4, _q4_1),
    "Q4_K": BlockFormat(
        np.dtype([_D, ("dmin", "<f2"), ("scales", "u1", 12), ("codes", "u1", SUPERBLOCK // 2)]), 4, _q4_k, SUPERBLOCK
    ),
    "Q5_0": BlockFormat(np.dtype([_D, ("fifth", "u1", GROUP // 8), _HALF]), 8, _q5_0),
    "Q8_0": BlockFormat(np.dtype([_D, ("codes", "u1", GROUP)]), 8, _q8_0),
    "IQ4_NL": BlockFormat(np.dtype([_D, _HALF]), 8, _iq4_nl),
    "IQ4_XS": BlockFormat(
        np.dtype([_D, ("high", "<u2"), ("low", "u1", 4), ("codes", "u1", SUPERBLOCK // 2)]), 8, _iq4_xs, SUPERBLOCK
    ),
    "MXFP4": BlockFormat(np.dtype([("e", "u1"), _HALF]), 8, _mxfp4),
}
"""Formats whose codes can stay as they are."""

DEQUANTISED: Final = (
    *("Q5_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "NVFP4"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
)
"""Block formats the gguf package dequantises."""
