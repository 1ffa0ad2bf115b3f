"""The three rulers in fp32: every layer's state, the logits, and greedy ids are transformers' own.

For every family, from every file format, with the plain and the fused kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from checkpoints import IN_GGUF, VARIANTS, Made
from families_llama import interleave
from gguf_files import TYPES
from rulers import KERNELS, assert_close, assert_greedy, build, greedy, measure, reference
from tiny import Tiny
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tinychat.kernels import plain
from tinychat.models.rope import Rope, Rotary, inverse_frequencies

IDS = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(1)).tolist()
EVERY_TYPE = ("gpt2", "gpt2-inner", "llama", "llama-ungrouped", "llama-head-dim", "llama-untied", "llama-biases")
"""Variants read from every type of GGUF; the others, whose tensors are read by the same code, from two."""
FOLDERS = [
    *((variant, "F32", {}) for variant in VARIANTS),
    *((variant, dtype, {}) for variant in ("gpt2", "llama", "llama-untied") for dtype in ("BF16", "F16")),
    ("gpt2", "F32", {"shards": True}),
    ("gpt2", "F32", {"prefix": False}),
    ("gpt2", "F16", {"prefix": False, "buffers": True}),
    ("gpt2-inner", "F32", {"buffers": True}),
    ("llama", "F32", {"old_config": True}),
    ("llama-ungrouped", "BF16", {"shards": True}),
    ("llama-theta", "F32", {"old_config": True}),
    ("llama-head-dim", "F32", {"old_config": True}),
    ("llama-untied", "BF16", {"shards": True, "old_config": True}),
    *((variant, "F32", {"old_config": True}) for variant in ("llama-llama3", "llama-yarn", "qwen2-yarn", "smollm3")),
    *((variant, "BF16", {"shards": True}) for variant in ("mistral", "qwen2", "qwen3", "smollm3")),
]
GGUFS = [
    *((variant, kind, {}) for variant in IN_GGUF for kind in (TYPES if variant in EVERY_TYPE else ("F32", "Q4_1"))),
    ("gpt2", "Q8_0", {"head_copy": True}),
    ("gpt2", "Q4_1", {"embedding": "F32"}),
    ("llama", "Q4_0", {"embedding": "Q4_0"}),
    ("llama-head-dim", "Q4_1", {"embedding": "Q4_1"}),
    ("llama-untied", "Q8_0", {"embedding": "BF16"}),
]
GREEDY_FROM_FOLDERS = (
    *("gpt2", "gpt2-inner", "llama", "gpt_neox", "gemma2-untied", "phi3-partial"),
    *("mistral", "qwen2-window", "qwen3", "smollm3"),
)
GREEDY_FROM_GGUF = {
    "gpt2": "Q4_1",
    "llama": "Q8_0",
    "llama-head-dim": "Q4_0",
    "llama-biases": "F16",
    "llama-llama3": "F16",
    "gpt_neox-sequential": "Q8_0",
    "gemma3-untied": "F16",
    "phi3-window": "Q8_0",
    "mistral-head-dim": "F16",
    "qwen2-yarn": "F16",
    "qwen3": "F16",
    "smollm3": "F16",
}
Make = Callable[[Tiny], Made]


def _files() -> list[object]:
    """Return every checkpoint there is, as a function of the fixture."""
    made = []
    for method, files in (("safetensors", FOLDERS), ("gguf", GGUFS)):
        for variant, kind, options in files:
            name = "-".join([method, variant, kind, *(f"{key}={value}" for key, value in options.items())])
            made.append(
                pytest.param(lambda tiny, m=method, v=variant, k=kind, o=options: getattr(tiny, m)(v, k, **o), id=name)
            )
    return made


@pytest.mark.parametrize("make", _files())
def test_states_and_logits(tiny: Tiny, make: Make):
    """Catches every mistake of names, shapes, permutations, transposes, biases, epsilons, masks and positions."""
    made = make(tiny)
    expected = reference(made.model, IDS)
    for kernels in KERNELS:
        # The fused kernels serve one token a step; the plain ones, any number.
        built = build(made.path, "fp32", kernels)
        for step in (None, 7) if kernels is plain else (1,):
            assert_close(measure(built, IDS, step), expected)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
@pytest.mark.parametrize(
    ("file", "variant", "kind"),
    [
        *(("safetensors", variant, "F32") for variant in GREEDY_FROM_FOLDERS),
        *(("gguf", variant, kind) for variant, kind in GREEDY_FROM_GGUF.items()),
    ],
)
def test_greedy_ids(tiny: Tiny, file, variant, kind, kernels):
    """Catches an error of the cache that grows from token to token: transformers, without one, judges each token."""
    made = getattr(tiny, file)(variant, kind, seed=3 if variant == "gpt2-inner" else 0)
    made_ids = greedy(build(made.path, "fp32", kernels).context(), IDS[:12], 40)
    assert_greedy(made.model, IDS[:12], made_ids)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
@pytest.mark.parametrize("variant", ["gpt2", "llama", "llama-theta", "llama-llama3", "llama-yarn", "smollm3"])
def test_all_positions(tiny: Tiny, variant, kernels):
    """Catches tables of positions that end early or drift, and attention that goes wrong past a block of keys."""
    made = tiny.safetensors(variant)
    positions = made.model.config.max_position_embeddings
    ids = torch.randint(0, 320, (positions,), generator=torch.Generator().manual_seed(2)).tolist()
    built = build(made.path, "fp32", kernels)
    assert_close(measure(built, ids, 64 if kernels is plain else 1), reference(made.model, ids))


def test_dynamic_scaling(tiny: Tiny):
    """Catches a base that stays where it was when a sequence outgrows the trained length."""
    made = tiny.safetensors("llama-dynamic")
    built = build(made.path)
    ids = torch.randint(0, 320, (256,), generator=torch.Generator().manual_seed(2)).tolist()
    assert len(ids) > made.model.config.max_position_embeddings
    assert_close(measure(built, ids), reference(made.model, ids))


@pytest.mark.parametrize(("size", "theta"), [(64, 1e5), (64, 1e4), (128, 5e5), (80, 1e6)])
def test_rotary_tables(size, theta):
    """Catches frequencies or angles computed in another precision: off by little at first, by radians at 8,000."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=size,
        num_attention_heads=1,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    positions = torch.arange(8192)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, 1, size), positions)
    ours = Rotary(Rope(inverse_frequencies(size, theta)), 8192).tables
    torch.testing.assert_close(ours[0], cos[0, :, : size // 2], rtol=0, atol=1e-6)
    torch.testing.assert_close(ours[1], sin[0, :, : size // 2], rtol=0, atol=1e-6)


def test_the_ruler_sees_a_missing_permutation(tiny: Tiny):
    """The first token often survives it, so only the states tell."""
    made = tiny.gguf("llama", "F32")
    wrong = copy.deepcopy(made.model)
    for layer in wrong.model.layers:
        layer.self_attn.q_proj.weight.copy_(interleave(layer.self_attn.q_proj.weight, 4))
        layer.self_attn.k_proj.weight.copy_(interleave(layer.self_attn.k_proj.weight, 2))
    with pytest.raises(AssertionError, match="into layer 1"):
        assert_close(measure(build(made.path), IDS), reference(wrong, IDS))


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_the_ruler_sees_one_per_mille(tiny: Tiny, variant):
    """A thousandth more in the last norm's weights is seen, and only there."""
    made = tiny.safetensors(variant)
    wrong = copy.deepcopy(made.model)
    (wrong.transformer.ln_f if variant == "gpt2" else wrong.model.norm).weight.mul_(1.001)
    with pytest.raises(AssertionError, match="final norm"):
        assert_close(measure(build(made.path), IDS), reference(wrong, IDS))
