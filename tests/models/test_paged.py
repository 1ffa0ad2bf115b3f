"""The paged cache against the slab: whatever is appended, trimmed, forked and let go of, in any order."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinychat.errors import OutOfMemory
from tinychat.kernels import Kernels, fused, plain
from tinychat.models.cache import AttentionSpec, SlabCache, slabs
from tinychat.models.paged import BLOCK, BlockPool, BlockTable
from tinychat.models.paged_cache import PagedCaches, blocks, cache_bytes, quantise
from tinychat.models.rope import Rope, inverse_frequencies

H, K, D = 4, 2, 8
CAPACITY = 150
ROPE = Rope(inverse_frequencies(D, 1e4))
SEES_ALL = AttentionSpec(K, D, D**-0.5, ROPE)
SEES_WINDOW = AttentionSpec(K, D, D**-0.5, ROPE, window=40)
CAPPED = AttentionSpec(K, D, D**-0.5, None, softcap=2.0)
LAYERS = (SEES_ALL, SEES_WINDOW, CAPPED)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 40)),
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("trim"), st.integers(0, 60)),
        st.tuples(st.just("fork"), st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 5)),
        st.tuples(st.just("turn to"), st.integers(0, 5)),
    ),
    max_size=30,
)


def slabs_of() -> list[SlabCache]:
    return slabs(LAYERS, CAPACITY, torch.float32, "cpu", plain)


def counted(sequences: list[PagedCaches]) -> None:
    """Hold the pools' counts to what the tables name: a block leaked, or freed while in use, shows here."""
    for which, pool in enumerate(sequences[0].pools):
        named: Counter[int] = Counter()
        for sequence in sequences:
            table = sequence.tables[which]
            named.update(table.blocks[table.first : table.end].tolist())
        assert pool.references == [named[block] for block in range(pool.blocks)]
        assert pool.free == pool.references.count(0)


@pytest.mark.parametrize("kernels", [plain, fused], ids=["torch", "numba"])
@settings(deadline=None, max_examples=40)
@given(steps=STEPS, seed=st.integers(0, 2**32 - 1))
def test_any_order_equals_the_slab(kernels: Kernels, steps, seed):
    """Catches a block that two sequences write into, one freed too early, a copy that lacks a layer, a window that
    lets go of what is still seen."""
    generator = torch.Generator().manual_seed(seed)
    paged = [PagedCaches.reserve(LAYERS, CAPACITY, torch.float32, "cpu", kernels)]
    plainly = [slabs_of()]
    now = 0
    for what, number in steps:
        ours, theirs = paged[now], plainly[now]
        length = theirs[0].length
        if what == "append" and length + number <= CAPACITY:
            qkv = torch.randn(len(LAYERS), number, (H + 2 * K) * D, generator=generator)
            try:
                mixes = [cache.append_attend(x) for cache, x in zip(ours.layers, qkv, strict=True)]
            except OutOfMemory:
                ours.trim(length)
            else:
                for mix, cache, x in zip(mixes, theirs, qkv, strict=True):
                    torch.testing.assert_close(mix, cache.append_attend(x), rtol=1e-4, atol=1e-5)
        elif what == "trim" and ours.can_trim(length - min(number, length)):
            ours.trim(length - min(number, length))
            for cache in theirs:
                cache.trim(length - min(number, length))
        elif what == "fork" and len(paged) < 5:
            paged.append(ours.fork())
            copy = slabs_of()
            for mine, other in zip(copy, theirs, strict=True):
                mine.keys.copy_(other.keys)
                mine.values.copy_(other.values)
                mine.length = other.length
            plainly.append(copy)
        elif what == "free" and len(paged) > 1:
            paged.pop(number % len(paged)).trim(0)
            plainly.pop(number % len(plainly))
            now = 0
        elif what == "turn to":
            now = number % len(paged)
        counted(paged)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_bytes(dtype):
    """What is planned before loading is what is reserved."""
    caches = PagedCaches.reserve(LAYERS, CAPACITY, dtype, "cpu", plain)
    assert caches.nbytes == cache_bytes(LAYERS, CAPACITY, dtype) == sum(cache.nbytes for cache in caches.layers)


def test_int8_takes_about_half_of_bf16():
    """The figure people choose it for."""
    spec = AttentionSpec(3, 64, 0.125)
    half = cache_bytes([spec], 4096, torch.int8) / cache_bytes([spec], 4096, torch.bfloat16)
    assert 0.5 < half < 0.54


@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize("kernels", [plain, fused], ids=["torch", "numba"])
def test_int8_is_near_fp32(kernels, tokens):
    """One step of 127 of a head's largest number, not more: catches a scale of another head or token."""
    generator = torch.Generator().manual_seed(tokens)
    ours = PagedCaches.reserve([SEES_ALL], CAPACITY, torch.int8, "cpu", kernels).layers[0]
    theirs = slabs([SEES_ALL], CAPACITY, torch.float32, "cpu", plain)[0]
    for count in (33, tokens, 1, tokens):
        # Heads and tokens of very different size.
        x = torch.randn(count, (H + 2 * K), D, generator=generator)
        x[:, H:] *= torch.rand(count, 2 * K, 1, generator=generator) * 3
        mix = ours.append_attend(x.flatten(1))
        expected = theirs.append_attend(x.flatten(1))
        torch.testing.assert_close(mix, expected, rtol=0.05, atol=0.05)


def test_int8_codes_are_the_nearest():
    """At most half a step off, and a head of zeros stays zeros."""
    x = torch.randn(50, K, D, generator=torch.Generator().manual_seed(0)) * 100
    x[3] = 0
    codes, scale = quantise(x)
    assert codes.dtype == torch.int8
    assert bool(((codes * scale[..., None] - x).abs() <= scale[..., None] * 0.5001).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kernels", [plain, fused], ids=["torch", "numba"])
def test_int8_shows_what_is_no_number(kernels, bad):
    """Catches a largest number that passes over a NaN: its code would be just another one, and the reply goes on."""
    for component in range(D):
        for head in (H, H + K):  # of keys, of values
            cache = PagedCaches.reserve([SEES_ALL], CAPACITY, torch.int8, "cpu", kernels).layers[0]
            x = torch.ones(2, H + 2 * K, D)
            x[0, head, component] = bad
            for mix in (cache.append_attend(x.flatten(1)), cache.append_attend(torch.ones(1, (H + 2 * K) * D))):
                assert not bool(mix[-1, : H // K * D].isfinite().any())


def test_running_out_is_a_sentence():
    """With numbers, and it can go on when a block is free again."""
    table = BlockTable(BlockPool([SEES_ALL], 2, torch.float32, "cpu"), 1000)
    table.prepare(0, 2 * BLOCK)
    with pytest.raises(OutOfMemory, match=r"All 2 blocks of the cache \(64 tokens\)"):
        table.prepare(2 * BLOCK, 2 * BLOCK + 1)
    assert table.pool.failures == 1
    table.trim(BLOCK)
    table.prepare(BLOCK, BLOCK + 1)
    assert table.pool.free == 0


def test_a_fork_copies_only_the_last_partial_block():
    """70 tokens in three blocks: two stay shared, the third is copied by the first who writes."""
    caches = PagedCaches.reserve([SEES_ALL], CAPACITY, torch.float32, "cpu", plain)
    caches.layers[0].append_attend(torch.randn(70, (H + 2 * K) * D))
    fork = caches.fork()
    pool = caches.pools[0]
    assert (pool.blocks - pool.free, pool.shared) == (3, 3)
    fork.layers[0].append_attend(torch.randn(1, (H + 2 * K) * D))
    assert (pool.blocks - pool.free, pool.shared) == (4, 2)
    caches.layers[0].append_attend(torch.randn(1, (H + 2 * K) * D))
    assert (pool.blocks - pool.free, pool.shared) == (4, 2)


def test_a_window_takes_no_more_than_its_blocks():
    """However long a sequence grows, blocks behind the window go back."""
    caches = PagedCaches.reserve([SEES_WINDOW], 5000, torch.float32, "cpu", fused)
    most = 0
    for count in [256, 256, *[1] * 500, 256]:
        caches.layers[0].append_attend(torch.randn(count, (H + 2 * K) * D))
        most = max(most, caches.pools[0].blocks - caches.pools[0].free)
    assert most <= blocks(40, 5000)
    assert caches.can_trim(caches.layers[0].length - 8)
    assert not caches.can_trim(500)
