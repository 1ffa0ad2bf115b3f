"""Layers behind a window, at the lengths where windows go wrong: just below it, at it, just above it, past twice."""

from __future__ import annotations

import copy

import pytest
import torch
from checkpoints import IN_GGUF
from rulers import KERNELS, assert_close, build, measure, reference
from tiny import Tiny

from tinychat.kernels import plain

WINDOW = 8
IDS = torch.randint(0, 320, (2 * WINDOW + 4,), generator=torch.Generator().manual_seed(7)).tolist()


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 4])
@pytest.mark.parametrize(
    "variant",
    [
        *("gemma2", "gemma3", "gemma3-types", "phi3-window", "phi3-long-window"),
        *("mistral", "qwen2-window", "qwen3-window", "smollm3-window"),
    ],
)
def test_states_around_the_window(tiny: Tiny, variant, length):
    """Catches a window that is off by one, or that other layers have, whole or token by token."""
    made = tiny.safetensors(variant)
    expected = reference(made.model, IDS[:length])
    for kernels in KERNELS:
        built = build(made.path, "fp32", kernels)
        for step in (None, 5, 1) if kernels is plain else (1,):
            assert_close(measure(built, IDS[:length], step), expected)


@pytest.mark.parametrize(
    ("variant", "windows"),
    [
        ("gemma2", [8, None, 8, None]),
        ("gemma3", [8, 8, 8, 8, 8, None, 8]),
        ("gemma3-types", [None, 8, None]),
        ("phi3", [None, None, None]),
        ("phi3-window", [8, 8, 8]),
        ("mistral", [8, 8, 8]),
        ("mistral-windowless", [None, None, None]),
        ("qwen2", [None, None, None]),  # its config names a window that is off
        ("qwen2-window", [None, 8, 8]),
        ("qwen3-window", [8, None, 8]),
        ("smollm3-window", [None, 8, None, 8, None]),
    ],
)
def test_which_layers_have_one(tiny: Tiny, variant, windows):
    """Catches a pattern that starts at the wrong end, which short prompts never show."""
    files = [tiny.safetensors(variant), *([tiny.gguf(variant)] if variant in IN_GGUF else [])]
    for made in files:
        assert [spec.window for spec in build(made.path).model.attention] == windows


@pytest.mark.parametrize("variant", ["gemma2", "gemma3"])
def test_the_ruler_sees_layers_exchanged(tiny: Tiny, variant):
    """A model whose sliding layers are the other ones gives other states past the window, and the same ones before."""
    made = tiny.safetensors(variant)
    wrong = copy.deepcopy(made.model)
    for layer in wrong.model.layers:
        layer.self_attn.layer_type = "full_attention"
        layer.self_attn.sliding_window = None
    wrong.config.layer_types = ["full_attention"] * len(wrong.config.layer_types)
    built = build(made.path)
    if variant == "gemma2":  # whose layers all turn alike
        assert_close(measure(built, IDS[:WINDOW]), reference(wrong, IDS[:WINDOW]))
    with pytest.raises(AssertionError, match="into layer 1"):
        assert_close(measure(built, IDS), reference(wrong, IDS))
