"""The layer primitives for one new token, or a few, each fused into one plain loop that Numba compiles.

Between the matrix products of a token lie some 900 torch operations of a few microseconds each; here they are four a
block. More new tokens (prefill) take the torch form in `plain.py`, where operators are large enough; what a primitive
means is written there, and a test holds the two together.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import config, njit, set_num_threads

from tinychat.kernels import Attention, attention, plain
from tinychat.kernels.numbers import COMPILED, LIKE, address, array, exp, from_ordered, narrow, ordered, widen

NAME: Final = "numba"
FEW: Final = attention.MOST_TOKENS
"""New tokens up to which these forms serve."""
_STRETCH: Final = 32
"""Logits of which only the largest is looked at first."""
_MOST_RANKED: Final = 256
"""Tokens up to which ranking by stretches is faster than torch's."""


def set_threads(threads: int) -> None:
    """Let the parallel loops use so many threads, as far as the machine has them."""
    set_num_threads(max(1, min(threads, config.NUMBA_NUM_THREADS)))


def add_rms_norm(
    residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """See `plain.add_rms_norm`."""
    rows, width = residual.shape
    if rows > FEW:
        return plain.add_rms_norm(residual, delta, weight, eps, dtype)
    out = torch.empty(residual.shape, dtype=dtype)
    added = 0 if delta is None else address(delta)
    like = LIKE[dtype if delta is None else delta.dtype]
    _add_rms_norm(address(residual), added, address(weight), eps, address(out), rows, width, like, LIKE[dtype])
    return out


def add_layer_norm(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """See `plain.add_layer_norm`."""
    rows, width = residual.shape
    if rows > FEW:
        return plain.add_layer_norm(residual, delta, weight, bias, eps, dtype)
    out = torch.empty(residual.shape, dtype=dtype)
    added = 0 if delta is None else address(delta)
    like = LIKE[dtype if delta is None else delta.dtype]
    at = address(weight), address(bias)
    _add_layer_norm(address(residual), added, *at, eps, address(out), rows, width, like, LIKE[dtype])
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """See `plain.rms_norm`."""
    rows, width = x.shape
    if rows > FEW:
        return plain.rms_norm(x, weight, eps, dtype)
    out = torch.empty(x.shape, dtype=dtype)
    _rms_norm(address(x), address(weight), eps, address(out), rows, width, LIKE[x.dtype], LIKE[dtype])
    return out


def norm_heads(
    qkv: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor, kv_heads: int, eps: float
) -> torch.Tensor:
    """See `plain.norm_heads`."""
    rows, width = qkv.shape
    if rows > FEW:
        return plain.norm_heads(qkv, query_weight, key_weight, kv_heads, eps)
    size = len(query_weight)
    out = torch.empty(qkv.shape, dtype=qkv.dtype)
    weights = address(query_weight), address(key_weight)
    _norm_heads(address(qkv), *weights, eps, address(out), rows, width // size, kv_heads, size, LIKE[qkv.dtype])
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `plain.silu_mul`."""
    return _gated(gate_up, _silu_mul) if gate_up.shape[0] <= FEW else plain.silu_mul(gate_up)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `plain.gelu_tanh_mul`."""
    return _gated(gate_up, _gelu_tanh_mul) if gate_up.shape[0] <= FEW else plain.gelu_tanh_mul(gate_up)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """See `plain.gelu_tanh`."""
    if x.shape[0] > FEW:
        return plain.gelu_tanh(x)
    out = torch.empty(x.shape, dtype=x.dtype)
    _gelu_tanh(address(x), address(out), x.numel(), LIKE[x.dtype])
    return out


gelu_erf = plain.gelu_erf
softcap = plain.softcap


def append_attend(
    qkv: torch.Tensor,
    store: Any,
    length: int,
    rotary: tuple[torch.Tensor, torch.Tensor] | None,
    spec: Attention,
) -> torch.Tensor:
    """See `plain.append_attend`. A store without a table of blocks, such as the slab, is the plain form's."""
    if qkv.shape[0] > FEW or not hasattr(store, "table"):
        return plain.append_attend(qkv, store, length, rotary, spec)
    return attention.append_attend(qkv, store, length, rotary, spec)


def best(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See `plain.best`."""
    if not count <= _MOST_RANKED <= len(logits) // _STRETCH:
        return plain.best(logits, count)
    values, ids = torch.empty(count), torch.empty(count, dtype=torch.long)
    _best(address(logits), len(logits), count, address(values), address(ids))
    return values, ids


def statistics(logits: torch.Tensor, token_id: int) -> tuple[float, int, float]:
    """See `plain.statistics`."""
    logprob, rank, entropy = _statistics(address(logits), len(logits), token_id)
    return float(logprob), int(rank), float(entropy)


def _gated(gate_up: torch.Tensor, kernel: Any) -> torch.Tensor:
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, inner, dtype=gate_up.dtype)
    kernel(address(gate_up), address(out), rows, inner, LIKE[out.dtype])
    return out


@njit(**COMPILED)
def _add_rms_norm(
    residual: int, delta: int, weight: int, eps: float, out: int, rows: int, width: int, delta_like: Any, like: Any
) -> None:
    streams, scales = array(residual, (rows, width), np.float32(0)), array(weight, width, np.float32(0))
    added, result = array(delta, (rows, width), delta_like), array(out, (rows, width), like)
    for row in range(rows):
        stream = streams[row]
        total = np.float32(0)
        for i in range(width):
            x = stream[i]
            if delta != 0:
                x += widen(added[row, i])
                stream[i] = x
            total += x * x
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + np.float32(eps))
        for i in range(width):
            result[row, i] = narrow(stream[i] * scale * scales[i], like)


@njit(**COMPILED)
def _add_layer_norm(
    residual: int, delta: int, weight: int, bias: int, eps: float, out: int, rows: int, width: int,
    delta_like: Any, like: Any,
) -> None:  # fmt: skip
    streams, scales = array(residual, (rows, width), np.float32(0)), array(weight, width, np.float32(0))
    shifts = array(bias, width, np.float32(0))
    added, result = array(delta, (rows, width), delta_like), array(out, (rows, width), like)
    for row in range(rows):
        stream = streams[row]
        total = np.float32(0)
        for i in range(width):
            if delta != 0:
                stream[i] += widen(added[row, i])
            total += stream[i]
        mean = total / np.float32(width)
        spread = np.float32(0)
        for i in range(width):
            off = stream[i] - mean
            spread += off * off
        scale = np.float32(1) / np.sqrt(spread / np.float32(width) + np.float32(eps))
        for i in range(width):
            result[row, i] = narrow((stream[i] - mean) * scale * scales[i] + shifts[i], like)


@njit(**COMPILED)
def _normed(x: Any, weight: Any, eps: float, result: Any) -> None:
    """Fill result [n] with the RMS norm of x [n]."""
    total = np.float32(0)
    for i in range(len(x)):
        v = widen(x[i])
        total += v * v
    scale = np.float32(1) / np.sqrt(total / np.float32(len(x)) + np.float32(eps))
    for i in range(len(x)):
        result[i] = narrow(widen(x[i]) * scale * weight[i], result[i])


@njit(**COMPILED)
def _rms_norm(x: int, weight: int, eps: float, out: int, rows: int, width: int, x_like: Any, like: Any) -> None:
    source, scales = array(x, (rows, width), x_like), array(weight, width, np.float32(0))
    result = array(out, (rows, width), like)
    for row in range(rows):
        _normed(source[row], scales, eps, result[row])


@njit(**COMPILED)
def _norm_heads(
    qkv: int, query_weight: int, key_weight: int, eps: float, out: int, rows: int, heads: int, kv_heads: int,
    size: int, like: Any,
) -> None:  # fmt: skip
    """Norm the first of `heads` heads; the last `kv_heads` are values, those before them keys."""
    source, result = array(qkv, (rows, heads, size), like), array(out, (rows, heads, size), like)
    of_query, of_key = array(query_weight, size, np.float32(0)), array(key_weight, size, np.float32(0))
    for row in range(rows):
        for head in range(heads - kv_heads):
            weight = of_query if head < heads - 2 * kv_heads else of_key
            _normed(source[row, head], weight, eps, result[row, head])
        result[row, heads - kv_heads :] = source[row, heads - kv_heads :]


@njit(**COMPILED)
def _silu_mul(gate_up: int, out: int, rows: int, inner: int, like: Any) -> None:
    both, result = array(gate_up, (rows, 2 * inner), like), array(out, (rows, inner), like)
    for row in range(rows):
        for i in range(inner):
            gate = widen(both[row, i])
            result[row, i] = narrow(gate / (np.float32(1) + exp(-gate)) * widen(both[row, inner + i]), like)


@njit(**COMPILED)
def _gelu(v: Any) -> Any:
    """Return x (1 + tanh u) / 2 = x / (1 + e^(-2u)), with u = sqrt(2/pi) (x + 0.044715 x^3)."""
    u = np.float32(0.7978845608028654) * (v + np.float32(0.044715) * v * v * v)
    return v / (np.float32(1) + exp(np.float32(-2) * u))


@njit(**COMPILED)
def _gelu_tanh_mul(gate_up: int, out: int, rows: int, inner: int, like: Any) -> None:
    both, result = array(gate_up, (rows, 2 * inner), like), array(out, (rows, inner), like)
    for row in range(rows):
        for i in range(inner):
            result[row, i] = narrow(_gelu(widen(both[row, i])) * widen(both[row, inner + i]), like)


@njit(**COMPILED)
def _gelu_tanh(x: int, out: int, count: int, like: Any) -> None:
    source, result = array(x, count, like), array(out, count, like)
    for i in range(count):
        result[i] = narrow(_gelu(widen(source[i])), like)


@njit(**COMPILED)
def _best(logits: int, size: int, count: int, values: int, ids: int) -> None:
    """Rank the best `count` of the logits.

    The count-th largest of the maxima of stretches can't be larger than the count-th largest logit, so that one more
    pass finds few that are as large.
    """
    source = array(logits, size, np.float32(0))
    stretches = size // _STRETCH  # what is left over at the end is looked at in the second pass alone
    tops = np.empty(stretches, dtype=np.int32)
    for s in range(stretches):
        top = ordered(source[s * _STRETCH])
        for i in range(s * _STRETCH, (s + 1) * _STRETCH):
            value = ordered(source[i])
            top = value if value > top else top
        tops[s] = top
    bound = np.partition(tops, stretches - count)[stretches - count]
    least = from_ordered(bound)
    found = np.empty(size, dtype=np.int64)
    n = 0
    for s in range(stretches + 1):
        if s == stretches or tops[s] >= bound:
            for i in range(s * _STRETCH, min((s + 1) * _STRETCH, size)):
                if source[i] >= least:
                    found[n] = i
                    n += 1
    negative = np.empty(n, dtype=np.float32)
    for k in range(n):
        negative[k] = -source[found[k]]
    order = np.argsort(negative, kind="mergesort")  # stable: of equal ones, the first first
    result, where = array(values, count, np.float32(0)), array(ids, count, np.int64(0))
    for k in range(count):
        where[k] = found[order[k]]
        result[k] = source[where[k]]


@njit(**COMPILED)
def _statistics(logits: int, size: int, token_id: int) -> Any:
    source = array(logits, size, np.float32(0))
    own = source[token_id]
    largest = ordered(own)
    above = np.int32(0)
    for i in range(size):
        value = ordered(source[i])
        largest = value if value > largest else largest
        above += np.int32(1) if source[i] > own else np.int32(0)
    top = from_ordered(largest)
    mass = np.float64(0)
    moment = np.float64(0)  # of the logits, relative to the largest
    for start in range(0, size, 1024):
        part = np.float32(0)
        weighted = np.float32(0)
        for i in range(start, min(start + 1024, size)):
            below = source[i] - top
            weight = exp(below)
            part += weight
            # weight is 0, and so is the product, where a banned token's logit is minus infinity
            weighted += weight * (below if below > np.float32(-1e4) else np.float32(-1e4))
        mass += part
        moment += weighted
    log_mass = np.log(mass)
    return own - top - log_mass, above + 1, max(log_mass - moment / mass, 0.0)
