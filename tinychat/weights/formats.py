"""How numbers are stored: plain ones, and blocks of small codes that share a scale.

Names are those of the files. Layouts: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and ggml-common.h.
Only the standard library and NumPy are needed here, so that headers can be read before torch is imported.
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
"""Weights that share one scale, in every block format here."""

Unpack = Callable[[NDArray[Any], NDArray[Any], NDArray[np.float32], NDArray[np.float32]], None]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A block format whose weights are w = code * scale + zero, in fp32."""

    layout: np.dtype[Any]
    """One block of `GROUP` weights as the file holds it."""
    bits: int
    """4: codes are uint8 of 0 to 15. 8: codes are int8."""
    unpack: Unpack
    """(blocks [n], codes [n, GROUP], scale [n], zero [n]): fill the last three from the first."""


def _unpack_nibbles(packed: NDArray[np.uint8], codes: NDArray[Any]) -> None:
    """Low nibbles are the first half of a block's codes, high nibbles the second."""
    half = packed.shape[1]
    np.bitwise_and(packed, 15, out=codes[:, :half])
    np.right_shift(packed, 4, out=codes[:, half:])


def _unpack_q4_0(
    blocks: NDArray[Any], codes: NDArray[Any], scale: NDArray[np.float32], zero: NDArray[np.float32]
) -> None:
    """w = (code - 8) * d. The product 8 * d is exact in fp32, and so is the difference: d has 11 bits."""
    _unpack_nibbles(blocks["codes"], codes)
    scale[...] = blocks["d"]
    np.multiply(scale, np.float32(-8), out=zero)


def _unpack_q4_1(
    blocks: NDArray[Any], codes: NDArray[Any], scale: NDArray[np.float32], zero: NDArray[np.float32]
) -> None:
    """w = code * d + m, rounded once: the product is exact."""
    _unpack_nibbles(blocks["codes"], codes)
    scale[...] = blocks["d"]
    zero[...] = blocks["m"]


def _unpack_q8_0(
    blocks: NDArray[Any], codes: NDArray[Any], scale: NDArray[np.float32], zero: NDArray[np.float32]
) -> None:
    """w = code * d, exact in fp32."""
    codes[...] = blocks["codes"]
    scale[...] = blocks["d"]
    zero.fill(0)


BLOCKS: Final[dict[str, BlockFormat]] = {
    "Q4_0": BlockFormat(np.dtype([("d", "<f2"), ("codes", "u1", GROUP // 2)]), 4, _unpack_q4_0),
    "Q4_1": BlockFormat(np.dtype([("d", "<f2"), ("m", "<f2"), ("codes", "u1", GROUP // 2)]), 4, _unpack_q4_1),
    "Q8_0": BlockFormat(np.dtype([("d", "<f2"), ("codes", "i1", GROUP)]), 8, _unpack_q8_0),
}
