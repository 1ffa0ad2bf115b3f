"""What only Gemma does: a rounded factor of its embedding, caps, numbers that files leave out, vision beside text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Made
from gguf_files import write_gguf
from rulers import assert_close, build, found, measure, reference
from safetensors.torch import load_file, save_file
from tiny import Tiny
from transformers import AutoModelForCausalLM, Gemma3TextConfig

from tinychat.errors import UnsupportedModel
from tinychat.models import gemma2, gemma3
from tinychat.models.linear import abilities
from tinychat.models.probe import Probe

IDS = torch.randint(0, 320, (24,), generator=torch.Generator().manual_seed(8)).tolist()


def embedded(path: Path, dtype: str) -> torch.Tensor:
    """Return what enters the first block, [T, C]."""
    built = build(path, dtype)
    probe = Probe()
    with torch.inference_mode():
        built.model.forward(torch.tensor(IDS), built.caches(len(IDS)), probe)
    return probe.seen["hook_embed"].float()


@pytest.mark.parametrize("variant", ["gemma2", "gemma3"])
def test_the_factor_has_the_dtype_of_the_table(tiny: Tiny, variant):
    """The root of 96 is 9.798; in bf16 it is 9.8125, and the model was trained with that."""
    made = tiny.safetensors(variant, "BF16")
    table = made.model.model.embed_tokens.weight[IDS]
    torch.testing.assert_close(embedded(made.path, "fp32"), table * 96**0.5, rtol=1e-6, atol=0)
    in_bf16 = AutoModelForCausalLM.from_pretrained(made.path, dtype=torch.bfloat16)
    theirs = in_bf16.model.embed_tokens(torch.tensor(IDS)).detach()
    ours = embedded(made.path, "bf16")
    torch.testing.assert_close(ours, table * 9.8125, rtol=1e-6, atol=0)
    assert torch.equal(ours.bfloat16(), theirs)


@pytest.mark.skipif(not abilities().blocks, reason="there is no product by blocks without Numba")
def test_the_factor_of_a_quantised_table(tiny: Tiny):
    """Blocks hold fp32 scales: nothing is rounded to bf16, in llama.cpp neither."""
    made = tiny.gguf("gemma2", "Q4_0")
    table = made.model.model.embed_tokens.weight[IDS]
    torch.testing.assert_close(embedded(made.path, "auto"), table * 96**0.5, rtol=1e-5, atol=1e-6)


def test_caps_bend(tiny: Tiny):
    """A cap that no number reaches proves nothing: some logits are near the cap, and none beyond it."""
    made = tiny.safetensors("gemma2")
    largest = float(measure(build(made.path), IDS).logits.abs().max())
    assert 4.0 < largest <= 6.0


@pytest.mark.parametrize("cap", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_the_ruler_sees_a_missing_cap(tiny: Tiny, tmp_path, cap):
    """Without the one the states differ, without the other the logits alone."""
    made = tiny.safetensors("gemma2")
    config = json.loads((made.path / "config.json").read_text(encoding="utf-8")) | {cap: None}
    path = edited(made, tmp_path / "m", lambda name: name, vision=(), **config)
    with pytest.raises(AssertionError, match="into layer 1" if cap.startswith("attn") else "logits"):
        assert_close(measure(build(path), IDS), reference(made.model, IDS))


def edited(made: Made, to: Path, rename: Any, **config: Any) -> Path:
    """Copy a model folder, its tensors' names changed by `rename`, its config.json replaced."""
    shutil.copytree(made.path, to)
    tensors = {rename(name): tensor for name, tensor in load_file(to / "model.safetensors").items()}
    tensors |= {f"{vision}.layers.0.weight": torch.zeros(4, 4) for vision in config.pop("vision")}
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    (to / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return to


@pytest.mark.parametrize(
    ("prefix", "vision"),
    [
        ("language_model.model.", ("vision_tower.vision_model.encoder", "multi_modal_projector")),
        ("model.language_model.", ("model.vision_tower.vision_model.encoder", "model.multi_modal_projector")),
    ],
)
def test_the_text_of_a_model_that_sees(tiny: Tiny, tmp_path, prefix, vision):
    """The sizes from 4B on: the text's numbers under text_config, its tensors under a prefix, vision beside it."""
    made = tiny.safetensors("gemma3")
    text = json.loads((made.path / "config.json").read_text(encoding="utf-8"))
    path = edited(
        made,
        tmp_path / "m",
        lambda name: name.replace("model.", prefix, 1),
        vision=vision,
        model_type="gemma3",
        architectures=["Gemma3ForConditionalGeneration"],
        text_config=text,
        vision_config={"hidden_size": 4},
    )
    built = build(path)
    assert_close(measure(built, IDS), reference(made.model, IDS))
    assert built.report.notices == [
        "2 tensors in the file, the part that sees images, are not used: tinychat reads text alone."
    ]


def test_numbers_that_a_config_leaves_out():
    """gemma-3-4b-it's text_config says these five alone; the others are transformers' defaults."""
    said = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    ours = gemma3.Config.from_json({"model_type": "gemma3", "text_config": said}, "here")
    theirs = Gemma3TextConfig(**said)
    for name in ("vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.query_pre_attn_scalar == theirs.query_pre_attn_scalar
    assert list(ours.layer_types) == theirs.layer_types
    assert ours.tie_word_embeddings
    for rope, layer_type in ((ours.rope, "full_attention"), (ours.local_rope, "sliding_attention")):
        turning = theirs.rope_parameters[layer_type]
        assert rope.rope_type == turning["rope_type"], layer_type
        assert rope.rope_theta == turning["rope_theta"], layer_type
    assert ours.rope.parameters["factor"] == 8.0


@pytest.mark.parametrize(("architecture", "file", "layers"), [("gemma2", gemma2, 46), ("gemma3", gemma3, 62)])
def test_the_scale_of_27b(architecture, file, layers):
    """GGUF has no key for the number that the scores of the largest size are scaled by: it isn't the head size."""
    metadata = {
        "block_count": layers,
        "context_length": 8192,
        "embedding_length": 4608,
        "feed_forward_length": 36864,
        "attention.head_count": 32,
        "attention.head_count_kv": 16,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.key_length": 128,
        "attention.sliding_window": 4096,
    }
    metadata = {f"{architecture}.{key}": value for key, value in metadata.items()}
    metadata["tokenizer.ggml.tokens"] = ["a"] * 10
    assert file.Config.from_gguf(metadata, [], "here").query_pre_attn_scalar == 144
    metadata[f"{architecture}.block_count"] = layers - 1
    assert file.Config.from_gguf(metadata, [], "here").query_pre_attn_scalar == 128


def test_an_early_file(tmp_path):
    """Gemma 2's first GGUF files have no caps and no window; they mean the model's own."""
    keys = ("attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window")
    made = write_gguf(tmp_path / "m.gguf", "gemma2", metadata={f"gemma2.{key}": None for key in keys})
    model = build(made.path).model
    assert (model.config.attn_logit_softcapping, model.config.final_logit_softcapping) == (50.0, 30.0)
    assert [(spec.window, spec.softcap) for spec in model.attention] == [(4096, 50.0), (None, 50.0)] * 2


def test_a_pattern_in_the_header(tmp_path):
    """Newer files may give the pattern, as a number or layer by layer."""
    for given in (7, [True, True, True, True, True, True, False]):
        path = tmp_path / f"{type(given).__name__}.gguf"
        write_gguf(path, "gemma3", metadata={"gemma3.attention.sliding_window_pattern": given})
        assert [spec.window for spec in build(path).model.attention] == [8] * 6 + [None]


@pytest.mark.parametrize(
    ("variant", "changes", "word"),
    [
        ("gemma2", {"hidden_activation": "gelu"}, "'gelu'"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "caps the scores"),
    ],
)
def test_what_is_refused(tiny: Tiny, tmp_path, variant, changes, word):
    """Catches a feature that is passed over: the text would be nearly right for a while."""
    made = tiny.safetensors(variant)
    config = json.loads((made.path / "config.json").read_text(encoding="utf-8")) | changes
    path = edited(made, tmp_path / "m", lambda name: name, vision=(), **config)
    with pytest.raises(UnsupportedModel, match=word), found(path):
        pass
