"""A prompt computed in parts, on top of what the caches hold, gives what one pass over empty caches gives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
import torch
from rulers import KERNELS, Built, build
from tiny import Tiny

IDS = torch.randint(0, 320, (14,), generator=torch.Generator().manual_seed(4)).tolist()
SPLITS = [
    *[(at,) for at in range(1, 14)],
    *combinations(range(1, 14), 2),
    tuple(range(1, 14)),  # one token at a time
]
"""Where the prompt is cut: every place, every two places, every place at once."""
OTHER = torch.randint(0, 320, (20,), generator=torch.Generator().manual_seed(5)).tolist()
TOLERANCE = {"fp32": 1e-5, "bf16": 0.03, "auto": 0.025}
"""Share of the largest logit. Measured: 2e-6 in fp32, 0.014 in bf16, 0.011 in int4 over a bf16 cache. A mask that
forgets the cached tokens moves logits by their own size."""


def forward(built: Built, caches: list[object], ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        return built.model.forward(torch.tensor(ids), caches, every_position=True)


def assert_same(actual: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    error = float((actual - expected).abs().max() / expected.abs().max())
    assert error < TOLERANCE[dtype], f"off by {error:.2g} of the largest logit"
    if dtype == "fp32":
        assert torch.equal(actual.argmax(-1), expected.argmax(-1))


@pytest.fixture(
    params=[(kernels, dtype) for kernels in KERNELS for dtype in TOLERANCE], ids=lambda p: f"{p[0].NAME}-{p[1]}"
)
def path_of_reply(request):
    return request.param


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_every_split(tiny: Tiny, variant, path_of_reply):
    """Catches a causal mask, a position or a row of the cache that doesn't count what is cached already."""
    kernels, dtype = path_of_reply
    built = build(tiny.gguf(variant, "Q4_1").path, dtype, kernels)
    caches = built.caches(len(IDS))
    cold = forward(built, caches, IDS)
    for cuts in SPLITS:
        for cache in caches:
            cache.trim(0)
        ends = (0, *cuts, len(IDS))
        warm = [forward(built, caches, IDS[a:b]) for a, b in pairwise(ends)]
        assert_same(torch.cat(warm), cold, dtype)
        assert all(cache.length == len(IDS) for cache in caches)


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_after_trimming_other_tokens(tiny: Tiny, variant, path_of_reply):
    """Catches rows of forgotten tokens that are still seen: the caches held 20 others behind each prefix."""
    kernels, dtype = path_of_reply
    built = build(tiny.gguf(variant, "Q4_1").path, dtype, kernels)
    cold = forward(built, built.caches(len(IDS)), IDS)
    caches = built.caches(len(IDS) + len(OTHER))
    for kept in range(len(IDS)):
        for cache in caches:
            cache.trim(0)
        forward(built, caches, [*IDS[:kept], *OTHER])
        for cache in caches:
            cache.trim(kept)
        assert_same(forward(built, caches, IDS[kept:]), cold[kept:], dtype)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
def test_a_long_prompt_in_chunks(tiny: Tiny, kernels):
    """Catches what goes wrong only past one chunk of the engine, or past several blocks of keys."""
    ids = torch.randint(0, 320, (250,), generator=torch.Generator().manual_seed(6)).tolist()
    built = build(tiny.safetensors("llama").path, "fp32", kernels)
    cold = forward(built, built.caches(250), ids)
    for step in (31, 32, 33, 64, 127, 128, 129):
        caches = built.caches(250)
        warm = [forward(built, caches, ids[at : at + step]) for at in range(0, len(ids), step)]
        assert_same(torch.cat(warm), cold, "fp32")
