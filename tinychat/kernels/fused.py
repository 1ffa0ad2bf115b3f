"""The layer primitives for one new token, each fused into one plain loop that Numba compiles.

Between the matrix products of a token lie some 900 torch operations of a few microseconds each; here they are four a
block. Several new tokens (prefill) take the torch form in `plain.py`, where operators are large enough; what a
primitive means is written there, and a test holds the two together.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import config, njit, prange, set_num_threads

from tinychat.kernels import Attention, plain
from tinychat.kernels.numbers import COMPILED, array, exp, from_ordered, narrow, ordered, widen

NAME: Final = "numba"
_LIKE: Final = {torch.float32: np.float32(0), torch.bfloat16: np.uint16(0)}
"""What tells a kernel the type of the numbers at an address."""
_BLOCK: Final = 32
"""Keys that are widened and scored together."""
_PART: Final = 128
"""Positions from which a head's attention is cut into parts for several cores."""
_MOST_PARTS: Final = 8
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
    if residual.shape[0] > 1:
        return plain.add_rms_norm(residual, delta, weight, eps, dtype)
    out = torch.empty(residual.shape, dtype=dtype)
    added = 0 if delta is None else _address(delta)
    like = _LIKE[dtype if delta is None else delta.dtype]
    width = residual.shape[1]
    _add_rms_norm(_address(residual), added, _address(weight), eps, _address(out), width, like, _LIKE[dtype])
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
    if residual.shape[0] > 1:
        return plain.add_layer_norm(residual, delta, weight, bias, eps, dtype)
    out = torch.empty(residual.shape, dtype=dtype)
    added = 0 if delta is None else _address(delta)
    like = _LIKE[dtype if delta is None else delta.dtype]
    at = _address(weight), _address(bias)
    _add_layer_norm(_address(residual), added, *at, eps, _address(out), residual.shape[1], like, _LIKE[dtype])
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `plain.silu_mul`."""
    if gate_up.shape[0] > 1:
        return plain.silu_mul(gate_up)
    inner = gate_up.shape[1] // 2
    out = torch.empty(1, inner, dtype=gate_up.dtype)
    _silu_mul(_address(gate_up), _address(out), inner, _LIKE[out.dtype])
    return out


rms_norm = plain.rms_norm
norm_heads = plain.norm_heads
gelu_tanh_mul = plain.gelu_tanh_mul
gelu_erf = plain.gelu_erf
softcap = plain.softcap


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """See `plain.gelu_tanh`."""
    if x.shape[0] > 1:
        return plain.gelu_tanh(x)
    out = torch.empty(x.shape, dtype=x.dtype)
    _gelu_tanh(_address(x), _address(out), x.shape[1], _LIKE[x.dtype])
    return out


def append_attend(
    qkv: torch.Tensor,
    store: Any,
    length: int,
    rotary: tuple[torch.Tensor, torch.Tensor] | None,
    attention: Attention,
) -> torch.Tensor:
    """See `plain.append_attend`."""
    if qkv.shape[0] > 1 or attention.window is not None or attention.softcap is not None:
        return plain.append_attend(qkv, store, length, rotary, attention)
    keys, values, scale = store.keys, store.values, attention.scale
    shape = keys.shape
    width = qkv.shape[1] - 2 * shape[0] * shape[2]
    out = torch.empty(1, width, dtype=qkv.dtype)
    cos, sin, half = (0, 0, 0) if rotary is None else (_address(rotary[0]), _address(rotary[1]), rotary[0].shape[1])
    parts = 1 + length // _PART if length < _PART * _MOST_PARTS else _MOST_PARTS
    _attention(
        _address(qkv), _address(keys), _address(values), tuple(shape), length, cos, sin, half, scale, parts,
        _address(out), width, _LIKE[qkv.dtype], _LIKE[keys.dtype],
    )  # fmt: skip
    return out


def best(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See `plain.best`."""
    if not count <= _MOST_RANKED <= len(logits) // _STRETCH:
        return plain.best(logits, count)
    values, ids = torch.empty(count), torch.empty(count, dtype=torch.long)
    _best(_address(logits), len(logits), count, _address(values), _address(ids))
    return values, ids


def statistics(logits: torch.Tensor, token_id: int) -> tuple[float, int, float]:
    """See `plain.statistics`."""
    logprob, rank, entropy = _statistics(_address(logits), len(logits), token_id)
    return float(logprob), int(rank), float(entropy)


def _address(tensor: torch.Tensor) -> int:
    assert tensor.is_contiguous()
    return tensor.data_ptr()


@njit(**COMPILED)
def _add_rms_norm(
    residual: int, delta: int, weight: int, eps: float, out: int, width: int, delta_like: Any, like: Any
) -> None:
    stream, scales = array(residual, width, np.float32(0)), array(weight, width, np.float32(0))
    added, result = array(delta, width, delta_like), array(out, width, like)
    total = np.float32(0)
    for i in range(width):
        x = stream[i]
        if delta != 0:
            x += widen(added[i])
            stream[i] = x
        total += x * x
    scale = np.float32(1) / np.sqrt(total / np.float32(width) + np.float32(eps))
    for i in range(width):
        result[i] = narrow(stream[i] * scale * scales[i], like)


@njit(**COMPILED)
def _add_layer_norm(
    residual: int, delta: int, weight: int, bias: int, eps: float, out: int, width: int, delta_like: Any, like: Any
) -> None:
    stream, scales = array(residual, width, np.float32(0)), array(weight, width, np.float32(0))
    shifts = array(bias, width, np.float32(0))
    added, result = array(delta, width, delta_like), array(out, width, like)
    total = np.float32(0)
    for i in range(width):
        if delta != 0:
            stream[i] += widen(added[i])
        total += stream[i]
    mean = total / np.float32(width)
    spread = np.float32(0)
    for i in range(width):
        off = stream[i] - mean
        spread += off * off
    scale = np.float32(1) / np.sqrt(spread / np.float32(width) + np.float32(eps))
    for i in range(width):
        result[i] = narrow((stream[i] - mean) * scale * scales[i] + shifts[i], like)


@njit(**COMPILED)
def _silu_mul(gate_up: int, out: int, inner: int, like: Any) -> None:
    both, result = array(gate_up, 2 * inner, like), array(out, inner, like)
    for i in range(inner):
        gate = widen(both[i])
        result[i] = narrow(gate / (np.float32(1) + exp(-gate)) * widen(both[inner + i]), like)


@njit(**COMPILED)
def _gelu_tanh(x: int, out: int, inner: int, like: Any) -> None:
    # x (1 + tanh u) / 2 = x / (1 + e^(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)
    source, result = array(x, inner, like), array(out, inner, like)
    for i in range(inner):
        v = widen(source[i])
        u = np.float32(0.7978845608028654) * (v + np.float32(0.044715) * v * v * v)
        result[i] = narrow(v / (np.float32(1) + exp(np.float32(-2) * u)), like)


@njit(**COMPILED)
def _append(qkv: Any, keys: Any, values: Any, length: int, cos: Any, sin: Any, scale: float, query: Any) -> None:
    """Fill query [H, D] with rotated, scaled queries, and row `length` of the cache with the new keys and values."""
    heads, size = query.shape
    half = cos.shape[1]
    for head in range(heads + keys.shape[0]):
        start = head * size
        factor = np.float32(scale) if head < heads else np.float32(1)
        for i in range(size):
            x = widen(qkv[start + i])
            if i < half:
                x = x * cos[length, i] - widen(qkv[start + half + i]) * sin[length, i]
            elif i < 2 * half:
                x = x * cos[length, i - half] + widen(qkv[start + i - half]) * sin[length, i - half]
            if head < heads:
                query[head, i] = x * factor
            else:
                keys[head - heads, length, i] = narrow(x, keys[0, 0, 0])
    start = (heads + keys.shape[0]) * size
    for head in range(keys.shape[0]):
        for i in range(size):
            values[head, length, i] = narrow(widen(qkv[start + head * size + i]), values[0, 0, 0])


@njit(**COMPILED)
def _attend_range(query: Any, keys: Any, values: Any, start: int, stop: int, mix: Any, best: Any, mass: Any) -> None:
    """Attend to positions start..stop of one kv head, in blocks, by the online softmax (Milakov and Gimelshein 2018,
    arXiv:1805.02867).

    query [G, D] of the head's group; keys and values [capacity, D]. Fills mix [G, D] with the sum of values weighted by
    e^(score - best), best [G] with the largest score and mass [G] with the sum of the weights. A block is widened once
    for all heads of the group; four independent sums at a time keep the adders busy.
    """
    group, size = query.shape
    wide = np.zeros((_BLOCK, size), dtype=np.float32)
    scores = np.empty((group, _BLOCK), dtype=np.float32)
    best[:] = -np.inf
    mass[:] = 0
    mix[:] = 0
    for first in range(start, stop, _BLOCK):
        count = min(_BLOCK, stop - first)
        for j in range(count):
            for i in range(size):
                wide[j, i] = widen(keys[first + j, i])
        for g in range(group):
            for j in range(0, _BLOCK, 4):
                a = b = c = d = np.float32(0)
                for i in range(size):
                    x = query[g, i]
                    a += x * wide[j, i]
                    b += x * wide[j + 1, i]
                    c += x * wide[j + 2, i]
                    d += x * wide[j + 3, i]
                scores[g, j], scores[g, j + 1], scores[g, j + 2], scores[g, j + 3] = a, b, c, d
        for g in range(group):
            top = best[g]
            for j in range(count):
                top = scores[g, j] if scores[g, j] > top else top
            shrink = exp(best[g] - top) if first > start else np.float32(0)
            total = mass[g] * shrink
            for j in range(_BLOCK):
                weight = exp(scores[g, j] - top) if j < count else np.float32(0)
                scores[g, j] = weight
                total += weight
            best[g], mass[g] = top, total
            for i in range(size):
                mix[g, i] *= shrink
        for j in range(count):
            for i in range(size):
                wide[j, i] = widen(values[first + j, i])
        for g in range(group):
            for j in range(0, _BLOCK, 4):
                a, b, c, d = scores[g, j], scores[g, j + 1], scores[g, j + 2], scores[g, j + 3]
                for i in range(size):
                    sum_ab = a * wide[j, i] + b * wide[j + 1, i]
                    mix[g, i] += sum_ab + (c * wide[j + 2, i] + d * wide[j + 3, i])


@njit(**COMPILED, parallel=True)
def _attention(
    qkv: int, keys: int, values: int, shape: tuple[int, int, int], length: int, cos: int, sin: int, half: int,
    scale: float, parts: int, out: int, width: int, like: Any, cache_like: Any,
) -> None:  # fmt: skip
    """Append one token and attend. Each kv head's positions are cut into `parts`, whose mixes are then joined."""
    kv_heads, capacity, size = shape
    heads = width // size
    group = heads // kv_heads
    all_keys, all_values = array(keys, shape, cache_like), array(values, shape, cache_like)
    result = array(out, width, like)
    query = np.empty((heads, size), dtype=np.float32)
    new = array(qkv, width + 2 * kv_heads * size, like)
    table = (capacity, half)
    cosines, sines = array(cos, table, np.float32(0)), array(sin, table, np.float32(0))
    _append(new, all_keys, all_values, length, cosines, sines, scale, query)
    mix = np.empty((kv_heads, parts, group, size), dtype=np.float32)
    best = np.empty((kv_heads, parts, group), dtype=np.float32)
    mass = np.empty((kv_heads, parts, group), dtype=np.float32)
    share = (length + parts) // parts
    for task in prange(kv_heads * parts):
        head, part = task // parts, task % parts
        start = part * share
        own = query[head * group : (head + 1) * group]
        stop = min(start + share, length + 1)
        room = mix[head, part], best[head, part], mass[head, part]
        _attend_range(own, all_keys[head], all_values[head], start, stop, room[0], room[1], room[2])
    for head in range(kv_heads):
        for g in range(group):
            top = best[head, 0, g]
            for part in range(1, parts):
                top = max(top, best[head, part, g])
            total = np.float32(0)
            for part in range(parts):
                best[head, part, g] = exp(best[head, part, g] - top)
                total += mass[head, part, g] * best[head, part, g]
            start = (head * group + g) * size
            for i in range(size):
                x = np.float32(0)
                for part in range(parts):
                    x += mix[head, part, g, i] * best[head, part, g]
                result[start + i] = narrow(x / total, like)



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
