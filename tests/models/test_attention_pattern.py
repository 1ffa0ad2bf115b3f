"""The weights of attention beside transformers', for every family, cold and token by token."""

from __future__ import annotations

import math

import pytest
import torch
from checkpoints import VARIANTS
from rulers import KERNELS, build
from tiny import Tiny

from tinychat.models.cache import AttentionSpec, SlabCache
from tinychat.models.pattern import attention_pattern
from tinychat.models.probe import Probe
from tinychat.models.rope import Rope, Rotary

CASES = [*((variant, KERNELS[0]) for variant in VARIANTS), *((variant, KERNELS[1]) for variant in ("gpt2", "llama"))]
IDS = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(1)).tolist()


@torch.inference_mode()
def theirs(model, ids: list[int]) -> list[torch.Tensor]:
    """Return the weights of each layer, fp32 [H, T, S]."""
    model.set_attn_implementation("eager")
    return [layer[0] for layer in model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions]


@pytest.mark.parametrize(("variant", "kernels"), CASES, ids=lambda value: getattr(value, "NAME", value))
@torch.inference_mode()
def test_patterns_are_transformers_own(tiny: Tiny, variant, kernels):
    """All at once, then over paged caches in steps of 1, of which only the last rows are asked for. Catches angles of
    another position, a kv head of another group, a window one too wide, a cap in the wrong place."""
    made = tiny.safetensors(variant)
    built = build(made.path, kernels=kernels)
    expected = theirs(made.model, IDS)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(built.model.config.layers)]
    probe = Probe(names)
    built.model.forward(torch.tensor(IDS), built.caches(len(IDS)), probe)
    for name, pattern in zip(names, expected, strict=True):
        torch.testing.assert_close(probe.seen[name], pattern, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(probe.seen[name].sum(-1), torch.ones(pattern.shape[:2]))
    context = built.context()
    context.reuse(IDS)
    context.forward(IDS[:30])
    for at in range(30, 40):
        probe = Probe(names)
        probe.rows = 1
        context.forward(IDS[at : at + 1], probe)
        for name, pattern in zip(names, expected, strict=True):
            torch.testing.assert_close(probe.seen[name], pattern[:, at : at + 1, : at + 1], rtol=1e-4, atol=1e-6)


@torch.inference_mode()
def test_patterns_over_coarse_caches(tiny: Tiny):
    """bf16 and int8 keys give what these keys give: near the exact ones, and rows that sum to one."""
    made = tiny.safetensors("llama")
    expected = theirs(made.model, IDS)[1]
    built = build(made.path)
    for dtype, most in ((torch.bfloat16, 0.02), (torch.int8, 0.05)):
        object.__setattr__(built, "cache_dtype", dtype)
        context, probe = built.context(), Probe(["blocks.1.attn.hook_pattern"])
        context.forward(IDS[:39])
        context.forward(IDS[39:], probe)
        pattern = probe.seen["blocks.1.attn.hook_pattern"][:, 0]
        assert float((pattern - expected[:, 39]).abs().max()) < most
        torch.testing.assert_close(pattern.sum(-1), torch.ones(len(pattern)))


def test_by_hand():
    """Quarter turns, scores weighed by powers of 3 (see `models/by_hand.py`): token 1 gives 0.9 and 0.1 by one head,
    0.1 and 0.9 by the other; token 0 sees itself alone."""
    rope = Rope(torch.tensor([math.pi / 2]))
    spec = AttentionSpec(1, 2, math.log(3), rope)
    cache = SlabCache(spec, 2, torch.float32, "cpu", KERNELS[0], Rotary(rope, 2))
    qkv = torch.tensor([[1.0, 0, 0, 1, 1, 0, 4, 0], [0, -1, 1, 1, 0, 1, 0, 8]])
    cache.append_attend(qkv)
    expected = torch.tensor([[[1, 0], [0.9, 0.1]], [[1, 0], [0.1, 0.9]]])
    torch.testing.assert_close(attention_pattern(qkv, cache), expected)
    torch.testing.assert_close(attention_pattern(qkv, cache, 1), expected[:, 1:])
