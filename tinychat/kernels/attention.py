"""Attention of one new token, or a few, over a paged cache: rotate, append and attend in one compiled loop.

It reads keys and values through the block table where they lie. Positions of a head are cut into parts for several
cores, whose mixes are then joined by the online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867). What it means
is written in `plain.append_attend`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import njit, prange, types
from numba.extending import overload

from tinychat.kernels import Attention
from tinychat.kernels.numbers import COMPILED, LIKE, address, array, exp, narrow, widen

MOST_TOKENS: Final = 16
"""New tokens up to which this is the way; more are prefill."""
BLOCK: Final = 32
"""Positions of a block of the cache."""
_PART: Final = 4
"""Blocks from which a head's positions are cut into parts."""
_MOST_PARTS: Final = 8


def append_attend(
    qkv: torch.Tensor,
    store: Any,
    length: int,
    rotary: tuple[torch.Tensor, torch.Tensor] | None,
    attention: Attention,
) -> torch.Tensor:
    """See `plain.append_attend`; the store is a `PagedCache`."""
    tokens = qkv.shape[0]
    kv_heads, size = attention.kv_heads, attention.head_size
    width = qkv.shape[1] - 2 * kv_heads * size
    out = torch.empty(tokens, width, dtype=qkv.dtype)
    cos, sin, half = (0, 0, 0) if rotary is None else (address(rotary[0]), address(rotary[1]), rotary[0].shape[1])
    window = attention.window or 2**30
    seen = (length + tokens - 1) // BLOCK - max(0, length + 1 - window) // BLOCK + 1
    parts = min(1 + seen // _PART, _MOST_PARTS)
    keys, values = store.keys.data_ptr(), store.values.data_ptr()
    scales = (0, 0) if store.scales is None else (store.scales[0].data_ptr(), store.scales[1].data_ptr())
    _append_attend(
        address(qkv), tokens, kv_heads, width // size // kv_heads, size, keys, values, *scales,
        store.table.blocks.data_ptr(), length, cos, sin, half,
        window, attention.scale, attention.softcap or 0.0, parts, address(out), LIKE[qkv.dtype], LIKE[store.keys.dtype],
    )  # fmt: skip
    return out


@njit(**COMPILED)
def _tanh(x: Any) -> Any:
    """Return tanh x in fp32: 1 - 2 / (1 + e^2x)."""
    return np.float32(1) - np.float32(2) / (np.float32(1) + exp(np.float32(2) * x))


@njit(**COMPILED)
def _turn(head: Any, half: int, cos: Any, sin: Any, target: Any) -> None:
    """Fill target [D] with a head [D], its first 2 * half components turned by the angles of its position [half]."""
    for i in range(half):
        left, right = widen(head[i]), widen(head[half + i])
        target[i] = left * cos[i] - right * sin[i]
        target[half + i] = right * cos[i] + left * sin[i]
    for i in range(2 * half, len(head)):
        target[i] = widen(head[i])


def keep(x: Any, row: Any, scales: Any, block: int, head: int, place: int) -> None:
    """Write x [D] into a row of the cache; codes of int8 get their scale written, too."""
    raise NotImplementedError("only for compiled code")


@overload(keep, strict=False)
def _keep(x: types.Type, row: types.Array, scales: types.Type, block: Any, head: Any, place: Any) -> Any:  # noqa: ARG001
    if row.dtype != types.int8:

        def rounded(x: Any, row: Any, scales: Any, block: int, head: int, place: int) -> None:  # noqa: ARG001
            for i in range(len(x)):
                row[i] = narrow(x[i], row[i])

        return rounded

    def coded(x: Any, row: Any, scales: Any, block: int, head: int, place: int) -> None:
        largest = total = np.float32(0)
        for i in range(len(x)):
            largest = max(largest, abs(x[i]))
            total += abs(x[i])  # NaN if one of them is; the largest isn't
        scale = largest / np.float32(127)
        scales[block, head, place] = scale if total == total else total
        for i in range(len(x)):
            row[i] = np.int8(np.rint(x[i] / scale)) if scale > 0 else np.int8(0)

    return coded


@njit(**COMPILED)
def _attend_part(
    query: Any, length: int, group: int, keys: Any, values: Any, key_scales: Any, value_scales: Any, table: Any,
    head: int, first: int, last: int, window: int, cap: Any, mix: Any, best: Any, mass: Any,
) -> None:  # fmt: skip
    """Attend to the blocks first .. last of a sequence.

    Args:
        query: fp32 [n, size]: of all tokens and heads of the group, scaled.
        length: Position of the first of the tokens.
        group: Heads of a token.
        keys: The pool, [blocks, K, BLOCK, size].
        values: Likewise.
        key_scales: fp32 [blocks, K, BLOCK]; only of int8.
        value_scales: Likewise.
        table: int32: place in the sequence -> place in the pool.
        head: Which kv head.
        first: First block.
        last: One after the last block.
        window: How many positions a token sees.
        cap: Of scores, or 0.
        mix: fp32 [n, size]: gets the sum of values weighted by e^(score - best).
        best: fp32 [n]: gets the largest score.
        mass: fp32 [n]: gets the sum of the weights.
    """
    rows, size = query.shape
    wide = np.empty((BLOCK, size), dtype=np.float32)
    scores = np.empty(BLOCK, dtype=np.float32)
    weights = np.empty((rows, BLOCK), dtype=np.float32)
    best[:] = -np.inf
    mass[:] = 0
    mix[:] = 0
    for place in range(first, last):
        block = table[place]
        start = place * BLOCK
        held = keys[block, head]
        for j in range(BLOCK):
            for i in range(size):
                wide[j, i] = widen(held[j, i])
        for r in range(rows):
            # Rows that hold no token may hold anything, so what isn't seen is passed over, not multiplied by 0.
            seen = length + r // group + 1 - start
            stop, begin = min(BLOCK, seen), max(0, seen - window)
            if stop <= begin:
                weights[r, :] = 0
                continue
            for j in range(0, BLOCK, 4):
                a = b = c = d = np.float32(0)
                for i in range(size):
                    x = query[r, i]
                    a += x * wide[j, i]
                    b += x * wide[j + 1, i]
                    c += x * wide[j + 2, i]
                    d += x * wide[j + 3, i]
                scores[j], scores[j + 1], scores[j + 2], scores[j + 3] = a, b, c, d
            if key_scales.size > 1:
                for j in range(BLOCK):
                    scores[j] *= key_scales[block, head, j]
            if cap != 0:
                for j in range(BLOCK):
                    scores[j] = cap * _tanh(scores[j] / cap)
            top = best[r]
            for j in range(begin, stop):
                top = scores[j] if scores[j] > top else top
            shrink = exp(best[r] - top) if mass[r] != 0 else np.float32(0)
            total = mass[r] * shrink
            for j in range(BLOCK):
                weight = exp(scores[j] - top) if begin <= j < stop else np.float32(0)
                weights[r, j] = weight
                total += weight
            best[r], mass[r] = top, total
            for i in range(size):
                mix[r, i] *= shrink
        held = values[block, head]
        for j in range(BLOCK):
            for i in range(size):
                wide[j, i] = widen(held[j, i])
        newest = min(BLOCK, length + rows // group - start)
        if value_scales.size > 1:
            for r in range(rows):
                for j in range(newest):
                    weights[r, j] *= value_scales[block, head, j]
        for j in range(newest, BLOCK):
            wide[j, :] = 0
        for r in range(rows):
            for j in range(0, BLOCK, 4):
                a, b, c, d = weights[r, j], weights[r, j + 1], weights[r, j + 2], weights[r, j + 3]
                for i in range(size):
                    sum_ab = a * wide[j, i] + b * wide[j + 1, i]
                    mix[r, i] += sum_ab + (c * wide[j + 2, i] + d * wide[j + 3, i])


@njit(**COMPILED)
def _append(
    new: Any, keys: Any, values: Any, key_scales: Any, value_scales: Any, table: Any, length: int, cos: Any, sin: Any,
    scale: float, query: Any,
) -> None:  # fmt: skip
    """Write the keys and values of new [T, H + 2 K, D] into the pool, and its queries, turned and scaled, to query
    [K, T group, D]."""
    tokens, _, size = new.shape
    kv_heads = len(query)
    group = query.shape[1] // tokens
    heads = kv_heads * group
    turned = np.empty(size, dtype=np.float32)
    for t in range(tokens):
        position = length + t
        block, row = table[position // BLOCK], position % BLOCK
        for head in range(heads + 2 * kv_heads):
            half = cos.shape[1] if head < heads + kv_heads else 0
            _turn(new[t, head], half, cos[position], sin[position], turned)
            if head < heads:
                for i in range(size):
                    query[head // group, t * group + head % group, i] = turned[i] * np.float32(scale)
            elif head < heads + kv_heads:
                keep(turned, keys[block, head - heads, row], key_scales, block, head - heads, row)
            else:
                place = head - heads - kv_heads
                keep(turned, values[block, place, row], value_scales, block, place, row)


@njit(**COMPILED)
def _join(mix: Any, best: Any, mass: Any, group: int, result: Any) -> None:
    """Fill result [T, H, D] from what the parts of each kv head gave: [K, parts, T group, ...]."""
    kv_heads, parts, rows, size = mix.shape
    for head in range(kv_heads):
        for r in range(rows):
            top = best[head, 0, r]
            for part in range(1, parts):
                top = max(top, best[head, part, r])
            total = np.float32(0)
            for part in range(parts):
                best[head, part, r] = exp(best[head, part, r] - top)
                total += mass[head, part, r] * best[head, part, r]
            for i in range(size):
                x = np.float32(0)
                for part in range(parts):
                    x += mix[head, part, r, i] * best[head, part, r]
                result[r // group, head * group + r % group, i] = narrow(x / total, result[0, 0, 0])


@njit(**COMPILED, parallel=True)
def _append_attend(
    qkv: int, tokens: int, kv_heads: int, group: int, size: int, keys: int, values: int, key_scales: int,
    value_scales: int, table: int, length: int, cos: int, sin: int, half: int, window: int, scale: float, cap: float,
    parts: int, out: int, like: Any, cache_like: Any,
) -> None:  # fmt: skip
    """Append `tokens` tokens and attend; numbers are as in `plain.append_attend`, tensors are addresses."""
    heads, rows, end = kv_heads * group, tokens * group, length + tokens
    # How many blocks there are is the pool's business; more than any index is enough here.
    pool = (2**31, kv_heads, BLOCK, size)
    all_keys, all_values = array(keys, pool, cache_like), array(values, pool, cache_like)
    scaled = (2**31 if key_scales != 0 else 0, kv_heads, BLOCK)
    k_scales, v_scales = array(key_scales, scaled, np.float32(0)), array(value_scales, scaled, np.float32(0))
    blocks = array(table, 2**31, np.int32(0))
    cosines, sines = array(cos, (end, half), np.float32(0)), array(sin, (end, half), np.float32(0))
    query = np.empty((kv_heads, rows, size), dtype=np.float32)
    new = array(qkv, (tokens, heads + 2 * kv_heads, size), like)
    _append(new, all_keys, all_values, k_scales, v_scales, blocks, length, cosines, sines, scale, query)
    mix = np.empty((kv_heads, parts, rows, size), dtype=np.float32)
    best = np.empty((kv_heads, parts, rows), dtype=np.float32)
    mass = np.empty((kv_heads, parts, rows), dtype=np.float32)
    first, last = max(0, length + 1 - window) // BLOCK, (end - 1) // BLOCK + 1
    share = (last - first + parts - 1) // parts
    for task in prange(kv_heads * parts):
        head, part = task // parts, task % parts
        begin = first + part * share
        _attend_part(
            query[head], length, group, all_keys, all_values, k_scales, v_scales, blocks, head, begin,
            min(begin + share, last), window, np.float32(cap), mix[head, part], best[head, part], mass[head, part],
        )  # fmt: skip
    _join(mix, best, mass, group, array(out, (tokens, heads, size), like))
