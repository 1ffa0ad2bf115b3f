"""What the fused kernels need of memory and numbers: tensors by address, bf16 as uint16, a vectorised exponential.

A NumPy view of a tensor costs more than some of the kernels; its address costs almost nothing.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from llvmlite import binding
from numba import carray, config, njit, types
from numba.extending import intrinsic, overload

from tinychat import paths


def _cache_folder() -> Path:
    """Return the folder of compiled kernels, one for each state of this folder's sources.

    Numba looks at the age of the one file that a kernel is in, and would keep a kernel whose callees have changed.
    """
    sources = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        sources.update(file.read_bytes())
    name = Path("kernels") / sources.hexdigest()[:16]
    try:
        folder = paths.cache_dir() / name
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that can't be written to: compiled anew in each boot of the machine
        folder = Path(tempfile.gettempdir()) / "tinychat" / name
    return folder


if not config.CACHE_DIR:
    config.CACHE_DIR = str(_cache_folder())


def _features() -> str:
    """Return what the processor can, as LLVM names it."""
    features = binding.get_host_cpu_features()
    # Of the one instruction that multiplies pairs of words and adds, LLVM makes two on Intel's processors: a sum is
    # there sooner by three cycles. Our products keep many sums at once and wait for none, so that one instruction in
    # place of two takes little more than half the time. An LLVM that doesn't know the word would print a warning.
    fast = (features.get("avx512vnni") or features.get("avxvnni")) and binding.llvm_version_info >= (22,)
    return str(features.flatten()) + (",+fast-dpwssd" if fast else "")


if not config.CPU_FEATURES:
    config.CPU_FEATURES = _features()

COMPILED: Final[dict[str, Any]] = {
    # Everything that reorders sums, nothing that would hide a NaN or an infinity.
    "fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"},
    # Python's model tests every divisor for zero, and a loop with such a branch is not vectorised.
    "error_model": "numpy",
    "nogil": True,
    "cache": True,
}
"""How every kernel is compiled."""


LIKE: Final = {torch.float32: np.float32(0), torch.bfloat16: np.uint16(0), torch.int8: np.int8(0)}
"""What tells a kernel the type of the numbers at an address."""


def address(tensor: torch.Tensor) -> int:
    """Return where a tensor's numbers lie, one after the other."""
    assert tensor.is_contiguous()
    return tensor.data_ptr()


@intrinsic
def _pointer(typing: Any, address: types.Type, like: types.Type) -> Any:
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(address, like), generate


@njit(**COMPILED)
def array(address: Any, shape: Any, like: Any) -> Any:
    """Return the contiguous array that lies at `address`, of numbers of the type of `like`."""
    return carray(_pointer(address, like), shape)


def widen(x: Any) -> Any:
    """Return a number of an array as fp32; uint16 holds the bits of a bf16, int8 a code."""
    raise NotImplementedError("only for compiled code")


@overload(widen, strict=False)
def _widen(x: types.Type) -> Callable[[Any], Any]:
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: np.float32(x)


def narrow(x: Any, like: Any) -> Any:
    """Return fp32 `x` as `like` is stored; to bf16 it rounds to nearest even, as torch does."""
    raise NotImplementedError("only for compiled code")


@overload(narrow, strict=False)
def _narrow(x: types.Type, like: types.Type) -> Callable[[Any, Any], Any]:  # noqa: ARG001
    if like != types.uint16:
        return lambda x, like: x  # noqa: ARG005

    def to_bf16(x: Any, like: Any) -> Any:  # noqa: ARG001
        bits = np.float32(x).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.uint16(rounded) if x == x else np.uint16(0x7FC0)

    return to_bf16


@njit(**COMPILED)
def exp(x: Any) -> Any:
    """Return e^x in fp32, within 2e-7 of it; NaN for NaN. Beyond -87 and 88 it stays at their values.

    e^x = 2^n e^r with |r| <= ln(2)/2 and a polynomial for e^r (Cephes' coefficients, S. Moshier). A call of the C
    library's exp would keep the loop around it from being vectorised.
    """
    c = x if x > np.float32(-87.0) else np.float32(-87.0)
    c = c if c < np.float32(88.0) else np.float32(88.0)
    n = np.int32(c * np.float32(1.44269504088896341) + np.float32(128.5)) - np.int32(128)  # rounds, also below 0
    r = c - np.float32(n) * np.float32(0.693359375) + np.float32(n) * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    power = np.int32((n + np.int32(127)) << np.int32(23)).view(np.float32)
    return p * power if x == x else x


@njit(**COMPILED)
def ordered(x: Any) -> Any:
    """Return an int32 that is larger for a larger fp32; the search for the largest int is vectorised, of fp32 it isn't.

    Negative numbers have their sign bit set and grow downwards: the other bits are turned around.
    """
    bits = np.float32(x).view(np.int32)
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@njit(**COMPILED)
def from_ordered(value: Any) -> Any:
    """Return the fp32 that `ordered` made this of."""
    bits = np.int32(value)
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)
