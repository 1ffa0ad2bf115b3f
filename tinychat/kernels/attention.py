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
from tinychat.kernels.attention_tile import QUERIES, TILE, fetch, mix_tile, mix_two_tiles, scores
from tinychat.kernels.numbers import COMPILED, LIKE, address, array, exp, from_ordered, narrow, ordered, widen

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
    item = store.keys.itemsize
    scales = (0, 0) if store.scales is None else (store.scales[0].data_ptr(), store.scales[1].data_ptr())
    _append_attend(
        address(qkv), tokens, kv_heads, width // size // kv_heads, size, keys, values, item, *scales,
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


def keep(x: Any, row: Any) -> Any:
    """Fill a row of the cache with x [D]; of codes of int8, return what one step is worth."""
    raise NotImplementedError("only for compiled code")


@overload(keep, strict=False)
def _keep(x: types.Type, row: types.Array) -> Any:  # noqa: ARG001
    if row.dtype != types.int8:

        def rounded(x: Any, row: Any) -> Any:
            for i in range(len(x)):
                row[i] = narrow(x[i], row[i])
            return np.float32(1)

        return rounded

    def coded(x: Any, row: Any) -> Any:
        largest = total = np.float32(0)
        for i in range(len(x)):
            largest = max(largest, abs(x[i]))
            total += abs(x[i])  # NaN if one of them is; the largest isn't
        scale = largest / np.float32(127)
        for i in range(len(x)):
            row[i] = np.int8(np.rint(x[i] / scale)) if scale > 0 else np.int8(0)
        return scale if total == total else total

    return coded


@njit(**COMPILED)
def _weigh(scored: Any, begin: int, stop: int, before: Any, weights: Any) -> Any:
    """Fill weights [BLOCK] with e^(score - top) where begin <= j < stop, else 0; return top, the largest of those
    scores and of `before`, and the sum of the weights.
    """
    nothing = np.float32(-np.inf)
    top = ordered(before)
    for j in range(BLOCK):
        score = scored[j] if (j >= begin) & (j < stop) else nothing
        scored[j] = score
        value = ordered(score)
        top = value if value > top else top
    largest = from_ordered(top)
    total = np.float32(0)
    for j in range(BLOCK):
        weight = exp(scored[j] - largest)
        weight = np.float32(0) if scored[j] == nothing else weight
        weights[j] = weight
        total += weight
    return largest, total


@njit(**COMPILED)
def _attend_part(
    query: Any, length: int, rows: int, group: int, keys: int, values: int, like: Any, item: int, step: int,
    key_scales: Any, value_scales: Any, table: Any, head: int, first: int, last: int, window: int, cap: Any, mixed: Any,
    best: Any, mass: Any,
) -> None:  # fmt: skip
    """Attend to the blocks first .. last of a sequence.

    Args:
        query: fp32 [n, size]: of all tokens and heads of the group, scaled; n is `rows` and then some, up to a multiple
            of QUERIES.
        length: Position of the first of the tokens.
        rows: Of `query`.
        group: Heads of a token.
        keys: Address of the head's keys in the pool's first block, [BLOCK / 16, size / 2, 16, 2].
        values: Address of its values there, [BLOCK, size].
        like: Tells their type.
        item: Bytes of one of their numbers.
        step: Bytes from a block to the next one in the pool.
        key_scales: fp32 [blocks, K, BLOCK]; only of int8.
        value_scales: Likewise.
        table: int32: place in the sequence -> place in the pool.
        head: Which kv head.
        first: First block.
        last: One after the last block.
        window: How many positions a token sees.
        cap: Of scores, or 0.
        mixed: fp32 [n, size]: gets the sum of values weighted by e^(score - best).
        best: fp32 [rows]: gets the largest score.
        mass: fp32 [rows]: gets the sum of the weights.
    """
    padded, size = query.shape
    whole = size - size % TILE
    scored = np.empty((padded, BLOCK), dtype=np.float32)
    weights = np.zeros((padded, BLOCK), dtype=np.float32)
    best[:] = -np.inf
    mass[:] = 0
    mixed[:] = 0
    at_query, at_mix = query.ctypes.data, mixed.ctypes.data
    at_scores, at_weights = scored.ctypes.data, weights.ctypes.data
    for place in range(first, last):
        block = table[place]
        start = place * BLOCK
        offset = block * step
        if place + 1 < last:  # blocks lie anywhere: the processor can't guess the next one
            fetch(keys + table[place + 1] * step, BLOCK * size * item)
            fetch(values + table[place + 1] * step, BLOCK * size * item)
        for r in range(0, padded, QUERIES):
            for t in range(0, BLOCK, TILE):
                target = at_scores + (r * BLOCK + t) * 4
                scores(like, keys + offset + t * size * item, at_query + r * size * 4, size, target, BLOCK)
        for r in range(rows):
            # Rows that hold no token may hold anything, so what isn't seen is passed over, not multiplied by 0.
            seen = length + r // group + 1 - start
            stop, begin = min(BLOCK, seen), max(0, seen - window)
            if stop <= begin:
                weights[r, :] = 0
                continue
            own = scored[r]
            if key_scales.size > 1:
                for j in range(BLOCK):
                    own[j] *= key_scales[block, head, j]
            if cap != 0:
                for j in range(BLOCK):
                    own[j] = cap * _tanh(own[j] / cap)
            top, total = _weigh(own, begin, stop, best[r], weights[r])
            if mass[r] != 0:
                shrink = exp(best[r] - top)
                total += mass[r] * shrink
                for i in range(size):
                    mixed[r, i] *= shrink
            best[r], mass[r] = top, total
        newest = min(BLOCK, length + rows // group - start)
        if value_scales.size > 1:
            for r in range(rows):
                for j in range(newest):
                    weights[r, j] *= value_scales[block, head, j]
        for r in range(0, padded, QUERIES):
            weight, target = at_weights + r * BLOCK * 4, at_mix + r * size * 4
            for i in range(0, whole - TILE, 2 * TILE):
                mix_two_tiles(like, values + offset + i * item, size, weight, BLOCK, newest, target + i * 4)
            if whole % (2 * TILE) != 0:
                i = whole - TILE
                mix_tile(like, values + offset + i * item, size, weight, BLOCK, newest, target + i * 4)
        if whole < size:
            held = array(values + offset, (BLOCK, size), like)
            for r in range(rows):
                for j in range(newest):
                    for i in range(whole, size):
                        mixed[r, i] += weights[r, j] * widen(held[j, i])


@njit(**COMPILED)
def _append(
    new: Any, keys: Any, values: Any, key_scales: Any, value_scales: Any, table: Any, length: int, cos: Any, sin: Any,
    scale: float, query: Any,
) -> None:  # fmt: skip
    """Write the keys and values of new [T, H + 2 K, D] into the pool, and its queries, turned and scaled, to query
    [K, T group and then some, D]."""
    tokens, every, size = new.shape
    kv_heads = len(query)
    heads = every - 2 * kv_heads
    group = heads // kv_heads
    turned = np.empty(size, dtype=np.float32)
    kept = np.empty(size, dtype=keys.dtype)
    for t in range(tokens):
        position = length + t
        block, row = table[position // BLOCK], position % BLOCK
        for head in range(every):
            half = cos.shape[1] if head < heads + kv_heads else 0
            _turn(new[t, head], half, cos[position], sin[position], turned)
            if head < heads:
                for i in range(size):
                    query[head // group, t * group + head % group, i] = turned[i] * np.float32(scale)
            elif head < heads + kv_heads:
                place = head - heads
                worth = keep(turned, kept)
                for i in range(size):
                    keys[block, place, row // TILE, i // 2, row % TILE, i % 2] = kept[i]
                if key_scales.size > 1:
                    key_scales[block, place, row] = worth
            else:
                place = head - heads - kv_heads
                worth = keep(turned, values[block, place, row])
                if value_scales.size > 1:
                    value_scales[block, place, row] = worth


@njit(**COMPILED)
def _join(mixed: Any, best: Any, mass: Any, group: int, result: Any) -> None:
    """Fill result [T, H, D] from what the parts of each kv head gave: [K, parts, T group (and then some), ...]."""
    kv_heads, parts, rows = best.shape
    size = mixed.shape[3]
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
                    x += mixed[head, part, r, i] * best[head, part, r]
                result[r // group, head * group + r % group, i] = narrow(x / total, result[0, 0, 0])


@njit(**COMPILED, parallel=True)
def _append_attend(
    qkv: int, tokens: int, kv_heads: int, group: int, size: int, keys: int, values: int, item: int, key_scales: int,
    value_scales: int, table: int, length: int, cos: int, sin: int, half: int, window: int, scale: float, cap: float,
    parts: int, out: int, like: Any, cache_like: Any,
) -> None:  # fmt: skip
    """Append `tokens` tokens and attend; numbers are as in `plain.append_attend`, tensors are addresses."""
    heads, rows, end = kv_heads * group, tokens * group, length + tokens
    padded = rows + -rows % QUERIES
    # How many blocks there are is the pool's business; more than any index is enough here.
    all_keys = array(keys, (2**31, kv_heads, BLOCK // TILE, size // 2, TILE, 2), cache_like)
    all_values = array(values, (2**31, kv_heads, BLOCK, size), cache_like)
    scaled = (2**31 if key_scales != 0 else 0, kv_heads, BLOCK)
    k_scales, v_scales = array(key_scales, scaled, np.float32(0)), array(value_scales, scaled, np.float32(0))
    blocks = array(table, 2**31, np.int32(0))
    cosines, sines = array(cos, (end, half), np.float32(0)), array(sin, (end, half), np.float32(0))
    query = np.zeros((kv_heads, padded, size), dtype=np.float32)
    new = array(qkv, (tokens, heads + 2 * kv_heads, size), like)
    _append(new, all_keys, all_values, k_scales, v_scales, blocks, length, cosines, sines, scale, query)
    mixed = np.empty((kv_heads, parts, padded, size), dtype=np.float32)
    best = np.empty((kv_heads, parts, rows), dtype=np.float32)
    mass = np.empty((kv_heads, parts, rows), dtype=np.float32)
    first, last = max(0, length + 1 - window) // BLOCK, (end - 1) // BLOCK + 1
    share = (last - first + parts - 1) // parts
    of_head = BLOCK * size * item
    for task in prange(kv_heads * parts):
        head, part = task // parts, task % parts
        begin = first + part * share
        _attend_part(
            query[head], length, rows, group, keys + head * of_head, values + head * of_head, cache_like, item,
            kv_heads * of_head, k_scales, v_scales, blocks, head, begin, min(begin + share, last), window,
            np.float32(cap), mixed[head, part], best[head, part], mass[head, part],
        )  # fmt: skip
    _join(mixed, best, mass, group, array(out, (tokens, heads, size), like))
