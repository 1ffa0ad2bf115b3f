"""What these files don't compute is refused by name before any weight is read, never computed wrongly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rulers import build, found
from tiny import Tiny

from tinychat.errors import CheckpointError, TinychatError, UnsupportedModel
from tinychat.models import ARCHITECTURES, architecture


def with_config(folder: Path, to: Path, **changes: Any) -> Path:
    """Copy a model folder and change its config.json; None removes a key."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text(encoding="utf-8")) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (to / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return to


def refusal(path: Path) -> TinychatError:
    with pytest.raises(TinychatError) as caught, found(path):
        pass
    assert str(path) in caught.value.summary
    return caught.value


@pytest.mark.parametrize(
    ("variant", "changes", "word"),
    [
        # In the spellings of transformers 4 and 5, which real files all have.
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "mrope"}}, "'mrope'"),
        ("llama", {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, "'proportional'"),
        ("llama", {"partial_rotary_factor": 0.5}, "part of each head"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}, "part of each head"),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised by gptq"),
        ("llama", {"hidden_act": "gelu"}, "'gelu'"),
        ("gpt2", {"activation_function": "relu"}, "'relu'"),
        ("gpt2", {"activation_function": "gelu"}, "'gelu'"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt2", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("llama", {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ("llama", {"model_type": "bert", "architectures": None}, "bert"),
        ("llama", {"model_type": None, "architectures": None}, "unnamed architecture"),
    ],
)
def test_folders(tiny: Tiny, tmp_path, variant, changes, word):
    """Catches a feature that is passed over: the text would be nearly right for a while."""
    error = refusal(with_config(tiny.safetensors(variant).path, tmp_path / "m", **changes))
    assert isinstance(error, UnsupportedModel)
    assert word in error.summary


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        ({"llama.rope.scaling.type": "spiral"}, "'spiral'"),
        ({"llama.expert_count": 8}, "experts"),
        ({"llama.rope.dimension_count": 8}, "part of each head"),
        ({"general.architecture": "qwen2moe"}, "qwen2moe"),
    ],
)
def test_gguf_files(tiny: Tiny, tmp_path, metadata, word):
    """The same of llama.cpp's files."""
    error = refusal(_gguf(tmp_path, "llama", metadata))
    assert isinstance(error, UnsupportedModel)
    assert word in error.summary


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama.rope.scaling.type": "none"},
        {"llama.rope.scaling.factor": 1.0},
        {"llama.expert_count": 0},
        {"llama.rope.dimension_count": None},
        {"llama.vocab_size": None},
        {"llama.attention.head_count_kv": 2},
    ],
)
def test_harmless_keys(tmp_path, metadata):
    """Keys that change nothing, or whose absence says the usual, are no reason to refuse a file."""
    build(_gguf(tmp_path, "llama", metadata))


@pytest.mark.parametrize(
    ("variant", "changes", "word"),
    [
        ("llama", {"num_attention_heads": None}, "num_attention_heads"),
        ("gpt2", {"n_layer": None}, "n_layer"),
        ("llama", {"num_attention_heads": 0}, ""),
        ("llama", {"num_attention_heads": "four"}, ""),
        ("llama", {"num_hidden_layers": [3]}, ""),
        ("llama", {"num_key_value_heads": 3}, ""),
        ("llama", {"rope_parameters": {"rope_theta": "big"}}, ""),
        ("llama", {"rope_parameters": 7}, ""),
        ("gpt2", {"n_head": 5}, ""),
        ("gpt2", {"n_embd": "wide"}, ""),
    ],
)
def test_numbers_that_make_no_model(tiny: Tiny, tmp_path, variant, changes, word):
    """Catches a TypeError in the middle of a load, whose words say nothing about the file."""
    error = refusal(with_config(tiny.safetensors(variant).path, tmp_path / "m", **changes))
    assert isinstance(error, CheckpointError)
    assert word in error.summary


def test_a_list_of_heads_per_layer(tmp_path):
    """GGUF lets a file give each layer its own number of heads; these models have one for all."""
    error = refusal(_gguf(tmp_path, "llama", {"llama.attention.head_count_kv": [2, 2, 2]}))
    assert isinstance(error, CheckpointError)


def test_architecture_names_what_it_could_run():
    """The remedy lists what is supported."""
    with pytest.raises(UnsupportedModel, match=f"It supports {', '.join(sorted(ARCHITECTURES))}") as caught:
        architecture({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "here")
    assert "MambaForCausalLM (here)" in caught.value.summary


def _gguf(folder: Path, variant: str, metadata: dict[str, Any]) -> Path:
    from gguf_files import write_gguf

    return write_gguf(folder / "m.gguf", variant, "F32", metadata=metadata).path
