"""LongRoPE where a sequence passes the length of the first training: all of it turns by other angles from there."""

from __future__ import annotations

import pytest
import torch
from rulers import KERNELS, build, greedy, reference_greedy
from tiny import Tiny

IDS = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(10)).tolist()
ORIGINAL = 16


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
@pytest.mark.parametrize("variant", ["phi3-long", "phi3-long-window"])
@pytest.mark.parametrize("prompt", [10, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1])
def test_generation_passes_the_original_length(tiny: Tiny, variant, kernels, prompt):
    """Catches keys that stay in the cache as the short angles turned them: transformers computes each token afresh."""
    for made in (tiny.safetensors(variant), tiny.gguf(variant)):
        expected, lead = reference_greedy(made.model, IDS[:prompt], 12)
        assert lead > 1e-3, "a tie proves nothing"
        assert greedy(build(made.path, "fp32", kernels).context(), IDS[:prompt], 12) == expected


def test_a_shorter_conversation_turns_back(tiny: Tiny):
    """Catches long angles that stay when the sequence is short again: a warm context says what a cold one does."""
    built = build(tiny.safetensors("phi3-long").path)
    warm = built.context()
    greedy(warm, IDS[:20], 4)
    kept = warm.reuse(IDS[:12])
    with torch.inference_mode():
        cold = built.context().forward(IDS[:12])
        torch.testing.assert_close(warm.forward(IDS[kept:12]), cold, rtol=1e-4, atol=1e-4)
