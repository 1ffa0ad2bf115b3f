"""Model folders as older versions of transformers wrote them, of families whose keys and names have changed since."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rulers import assert_close, build, measure, reference
from safetensors.torch import load_file, save_file
from tiny import Tiny

IDS = torch.randint(0, 320, (24,), generator=torch.Generator().manual_seed(9)).tolist()


def respelt(folder: Path, to: Path, without: tuple[str, ...], **config: Any) -> Path:
    """Copy a model folder, with keys taken out of its config.json and others put in."""
    shutil.copytree(folder, to)
    file = to / "config.json"
    old = {key: value for key, value in json.loads(file.read_text(encoding="utf-8")).items() if key not in without}
    file.write_text(json.dumps(old | config), encoding="utf-8")
    return to


def test_pythia(tiny: Tiny, tmp_path):
    """Pythia's files: rotary_pct and rotary_emb_base, embed_out, and masks and angles among the weights."""
    made = tiny.safetensors("gpt_neox-half-rotary")
    path = respelt(
        made.path, tmp_path / "m", ("rope_parameters", "attention_bias"), rotary_pct=0.5, rotary_emb_base=10000
    )
    tensors = load_file(path / "model.safetensors")
    head = next(name for name in tensors if name in ("lm_head.weight", "embed_out.weight"))
    tensors["embed_out.weight"] = tensors.pop(head)
    for layer in range(3):
        name = f"gpt_neox.layers.{layer}.attention"
        tensors[f"{name}.bias"] = torch.ones(1, 1, 256, 256).tril()
        tensors[f"{name}.masked_bias"] = torch.tensor(-1e9)
        tensors[f"{name}.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    assert_close(measure(build(path), IDS), reference(made.model, IDS))


@pytest.mark.parametrize("name", ["su", "longrope"])
def test_phi3(tiny: Tiny, tmp_path, name):
    """Phi-3's first files call LongRoPE "su", under rope_scaling; its original length stands beside it."""
    made = tiny.safetensors("phi3-long")
    parameters = dict(made.model.config.rope_parameters)
    scaling = {key: parameters[key] for key in ("short_factor", "long_factor")} | {"type": name}
    path = respelt(
        made.path,
        tmp_path / "m",
        ("rope_parameters",),
        rope_scaling=scaling,
        rope_theta=10000.0,
        original_max_position_embeddings=16,
    )
    assert_close(measure(build(path), IDS), reference(made.model, IDS))


def test_gemma3(tiny: Tiny, tmp_path):
    """Gemma 3's files: one rope_theta and one rope_scaling for the full layers, a base for the others, a pattern."""
    made = tiny.safetensors("gemma3")
    path = respelt(
        made.path,
        tmp_path / "m",
        ("rope_parameters", "layer_types"),
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        sliding_window_pattern=6,
    )
    assert_close(measure(build(path), IDS), reference(made.model, IDS))


def test_gemma2(tiny: Tiny, tmp_path):
    """Gemma 2's files: no layer_types, and hidden_act beside hidden_activation."""
    made = tiny.safetensors("gemma2")
    path = respelt(
        made.path,
        tmp_path / "m",
        ("rope_parameters", "layer_types"),
        rope_theta=10000.0,
        hidden_act="gelu",
        cache_implementation="hybrid",
    )
    assert_close(measure(build(path), IDS), reference(made.model, IDS))
