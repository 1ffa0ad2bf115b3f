"""Every tensor of a file has its place, its shape and finite numbers, or the file is refused by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import IN_GGUF, one_of_each_family
from rulers import KERNELS, NO_ABILITIES, assert_close, build, measure, reference
from safetensors.torch import load_file, save_file
from tiny import Tiny

from tinychat.errors import CheckpointError
from tinychat.kernels import plain
from tinychat.models.layers import HeadNorms
from tinychat.models.linear import Abilities
from tinychat.models.policy import Policy
from tinychat.weights import open_checkpoint

IDS = torch.randint(0, 320, (20,), generator=torch.Generator().manual_seed(1)).tolist()


def edited(folder: Path, to: Path, change: Callable[[dict[str, torch.Tensor]], Any], **config: Any) -> Path:
    """Copy a model folder, its tensors changed by `change`, its config.json by the keywords."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((to / "config.json").read_text(encoding="utf-8")) | config
    (to / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return to


# ---------------------------------------------------------------------------------------------------------------------
# Names and shapes


@pytest.mark.parametrize(
    ("variant", "name", "ours"),
    [
        ("llama-untied", "lm_head.weight", "lm_head.weight"),  # or it would be random, as it once was in transformers
        ("llama", "model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("llama", "model.norm.weight", "model.norm.weight"),
        ("llama", "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.k_proj.weight"),
        ("llama-biases", "model.layers.2.mlp.up_proj.bias", "model.layers.2.mlp.up_proj.bias"),
        ("gpt2", "transformer.h.2.attn.c_attn.bias", "h.2.attn.c_attn.bias"),
        ("gpt2", "transformer.wpe.weight", "wpe.weight"),
        ("gpt2", "transformer.ln_f.bias", "ln_f.bias"),
    ],
)
def test_a_missing_tensor(tiny: Tiny, tmp_path, variant, name, ours):
    """Catches a gap that is filled with whatever is in memory."""
    path = edited(tiny.safetensors(variant).path, tmp_path / "m", lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match="lacks " + ours.replace(".", r"\.")) as caught:
        build(path)
    assert str(path) in caught.value.summary
    assert caught.value.remedy


def test_many_missing_tensors(tiny: Tiny, tmp_path):
    """A list that goes on for pages helps nobody: five names, then how many more."""

    def without_layer(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".layers.1." in name]:
            del tensors[name]

    path = edited(tiny.safetensors("llama").path, tmp_path / "m", without_layer)
    with pytest.raises(CheckpointError) as caught:
        build(path)
    assert re.search(r"lacks (model\.layers\.1\.\S+, ){4}model\.layers\.1\.\S+ and 4 more\.$", caught.value.summary)


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("llama", "model.layers.3.mlp.up_proj.weight"),  # more layers than the config says
        ("llama", "model.layers.0.self_attn.q_norm.weight"),  # another architecture's
        ("llama", "model.layers.0.self_attn.q_proj.bias"),  # a bias the config doesn't know of
        ("llama", "score.weight"),
        ("gpt2", "transformer.h.0.crossattention.c_attn.weight"),
        ("gpt2", "transformer.h.3.ln_1.weight"),
    ],
)
def test_a_tensor_that_has_no_place(tiny: Tiny, tmp_path, variant, name):
    """Catches a part of the model that would silently not be computed."""
    change = lambda tensors: tensors.update({name: torch.zeros(64)})  # noqa: E731
    path = edited(tiny.safetensors(variant).path, tmp_path / "m", change)
    with pytest.raises(CheckpointError, match="no place in this architecture: .*" + name.removeprefix("transformer.")):
        build(path)


@pytest.mark.parametrize(
    ("variant", "changes", "sentence"),
    [
        ("llama", {"num_key_value_heads": 4}, r"k_proj\.weight \(is 32 x 64, has to be 64 x 64\)"),
        ("llama", {"intermediate_size": 128}, r"gate_proj\.weight \(is 96 x 64, has to be 128 x 64\)"),
        ("llama", {"vocab_size": 352}, r"embed_tokens\.weight \(is 320 x 64, has to be 352 x 64\)"),
        ("llama", {"head_dim": 32}, r"q_proj\.weight \(is 64 x 64, has to be 128 x 64\)"),
        ("gpt2", {"n_positions": 64}, r"wpe\.weight \(is 128 x 64, has to be 64 x 64\)"),
        ("gpt2", {"n_inner": 128}, r"c_fc\.weight \(is 64 x 256, has to be 64 x 128\)"),
    ],
)
def test_a_tensor_of_another_shape(tiny: Tiny, tmp_path, variant, changes, sentence):
    """Catches a config that isn't this file's, both numbers in the sentence, before a product fails in the middle."""
    path = edited(tiny.safetensors(variant).path, tmp_path / "m", lambda _: None, **changes)
    with pytest.raises(CheckpointError, match=sentence):
        build(path)


def test_a_tensor_that_is_there_twice(tiny: Tiny, tmp_path):
    """With and without GPT-2's prefix: which one counts?"""
    change = lambda tensors: tensors.update({"wte.weight": torch.zeros(320, 64)})  # noqa: E731
    path = edited(tiny.safetensors("gpt2").path, tmp_path / "m", change)
    with pytest.raises(CheckpointError, match=r"holds wte\.weight twice"):
        build(path)


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_a_head_beside_a_tied_one(tiny: Tiny, tmp_path, variant):
    """The config ties the head, so a copy in the file is passed over, and said to be."""
    made = tiny.safetensors(variant)
    change = lambda tensors: tensors.update({"lm_head.weight": torch.full((320, 64), 7.0)})  # noqa: E731
    built = build(edited(made.path, tmp_path / "m", change))
    assert_close(measure(built, IDS), reference(made.model, IDS))
    assert len(built.report.notices) == 1
    assert built.report.notices[0].startswith("lm_head.weight is in the file, but not used: ")
    assert built.report.parameters == sum(p.numel() for p in made.model.parameters())


def test_old_buffers_are_no_parameters(tiny: Tiny, tmp_path):
    """Old checkpoints hold masks and frequencies among their weights: known, of no use, and nothing to tell."""
    change = lambda tensors: tensors.update(  # noqa: E731
        {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    )
    built = build(edited(tiny.safetensors("llama").path, tmp_path / "m", change))
    assert built.report.notices == []
    assert build(tiny.safetensors("gpt2", buffers=True).path).report.notices == []


# ---------------------------------------------------------------------------------------------------------------------
# Numbers


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("llama", "model.embed_tokens.weight"),
        ("llama", "model.norm.weight"),
        ("llama-untied", "lm_head.weight"),
        ("llama", "model.layers.1.mlp.down_proj.weight"),
        ("llama", "model.layers.2.self_attn.v_proj.weight"),
        ("llama-biases", "model.layers.0.self_attn.o_proj.bias"),
        ("gpt2", "transformer.wpe.weight"),
        ("gpt2", "transformer.h.1.ln_2.bias"),
        ("gpt2", "transformer.h.1.mlp.c_fc.weight"),
    ],
)
def test_a_number_that_is_none(tiny: Tiny, tmp_path, variant, name, bad):
    """One NaN in a weight becomes NaN everywhere, or just odd text; it is named before the first token."""
    for dtype in ("fp32", "bf16", "int8", "int4"):
        change = lambda tensors: tensors[name].view(-1).__setitem__(-1, bad)  # noqa: E731
        path = edited(tiny.safetensors(variant).path, tmp_path / dtype, change)
        with pytest.raises(CheckpointError, match=f"{name}.* holds a NaN or an infinity") as caught:
            build(path, dtype)
        assert "model.safetensors" in caught.value.summary


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_k.weight", "blk.2.ffn_down.weight"])
@pytest.mark.parametrize("dtype", ["auto", "fp32"])
def test_a_scale_that_is_none(tiny: Tiny, tmp_path, name, dtype):
    """Codes can't be NaN, but the scale of a block can, and int4 keeps scales apart."""
    path = tmp_path / "m.gguf"
    shutil.copy(tiny.gguf("llama", "Q4_1").path, path)
    with open_checkpoint(path) as checkpoint:
        offset = checkpoint.tensors[name].offset
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\x00\x7e")  # the first block's scale, fp16
    with pytest.raises(CheckpointError, match=f"{name} in .* holds a NaN"):
        build(path, dtype)


def test_large_weights_are_not_infinite(tiny: Tiny, tmp_path):
    """Catches a check by a sum that overflows by itself: every weight here is finite."""
    change = lambda tensors: tensors["model.norm.weight"].fill_(3e38)  # noqa: E731
    build(edited(tiny.safetensors("llama").path, tmp_path / "m", change))


# ---------------------------------------------------------------------------------------------------------------------
# Sizes


def tensors_of(thing: Any, seen: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return every tensor a model holds on to, each once."""
    if isinstance(thing, torch.Tensor):
        seen[id(thing)] = thing
    elif isinstance(thing, (list, tuple)):
        for item in thing:
            tensors_of(item, seen)
    elif isinstance(thing, HeadNorms):
        tensors_of([thing.q_norm, thing.k_norm], seen)
    elif type(thing).__module__.startswith("tinychat.models") and hasattr(thing, "__dict__"):
        for item in vars(thing).values():
            tensors_of(item, seen)
    return seen


@pytest.mark.parametrize("variant", IN_GGUF)
@pytest.mark.parametrize("dtype", ["auto", "fp32", "bf16", "int8", "int4"])
def test_planned_bytes_are_built_bytes(tiny: Tiny, variant, dtype):
    """Catches a plan that isn't what is built (a model judged to fit then doesn't), and a copy nobody counted."""
    sizes = set()
    # What a machine lacks changes the form of a matrix, which is no affair of a variant's.
    first = variant in one_of_each_family(IN_GGUF)
    machines = (None, NO_ABILITIES, Abilities(fp32=True, bf16=False, blocks=True)) if first else (None,)
    for kind, can in product(("F16", "Q8_0", "Q4_0", "Q4_1") if first else ("F16", "Q4_1"), machines):
        built = build(tiny.gguf(variant, kind).path, dtype, can=can)
        assert built.planned.nbytes == built.report.nbytes
        assert built.planned.parameters == built.report.parameters
        assert built.planned.forms == built.report.forms
        held = tensors_of(built.model, {}).values()
        assert built.report.nbytes == sum(tensor.numel() * tensor.element_size() for tensor in held)
        sizes.add(built.report.nbytes)
    assert len(sizes) > 1 or dtype != "auto"


@pytest.mark.parametrize("dtype", ["auto", "fp32", "bf16"])
@pytest.mark.parametrize(
    ("variant", "kinds"),
    [
        ("llama", {"attn_q": "Q4_0", "attn_k": "Q4_1", "attn_v": "F16"}),
        ("llama-biases", {"attn_q": "Q8_0", "attn_k": "Q4_1", "attn_v": "Q4_0", "ffn_up": "F32"}),
        ("llama", {"attn_v": "Q8_0", "ffn_down": "Q8_0"}),  # as llama.cpp's mixtures do
        ("gpt2", {"attn_qkv": "Q8_0", "ffn_up": "BF16"}),
    ],
)
def test_projections_of_different_types(tiny: Tiny, variant, kinds, dtype):
    """Catches a product that takes one part's form for all of its parts, and permuted rows of the wrong part."""
    made = tiny.gguf(variant, "Q4_1", kinds=kinds)
    expected = reference(made.model, IDS)
    for kernels in KERNELS:
        built = build(made.path, dtype, kernels)
        assert built.planned.nbytes == built.report.nbytes
        bounds = {} if dtype == "fp32" else {"rtol": 0.05, "atol": 0.05}
        assert_close(measure(built, IDS, None if kernels is plain else 1), expected, **bounds)


def test_no_abilities_same_numbers(tiny: Tiny):
    """The plain products serve where no packed one does: in fp32 with the same result."""
    for variant in ("gpt2", "llama"):
        made = tiny.gguf(variant, "Q4_0")
        expected = reference(made.model, IDS)
        assert_close(measure(build(made.path, "fp32", can=NO_ABILITIES), IDS), expected)
        built = build(made.path, "auto", can=NO_ABILITIES)
        assert {form for _, form in built.report.forms["layers"]} == {"fp32"}
        assert_close(measure(built, IDS), expected)


@pytest.mark.parametrize(
    ("dtype", "can", "kind", "form"),
    [
        ("auto", Abilities(True, True, True), "Q4_0", "int4"),
        ("auto", Abilities(True, True, True), "Q4_1", "int4"),
        ("auto", Abilities(True, True, True), "Q8_0", "int8"),
        ("auto", Abilities(True, True, True), "F32", "bf16"),
        ("auto", Abilities(True, False, True), "Q4_0", "int4"),
        ("auto", Abilities(True, False, True), "F16", "fp32"),
        ("auto", Abilities(True, True, False), "Q4_1", "bf16"),
        ("auto", NO_ABILITIES, "Q8_0", "fp32"),
        ("bf16", NO_ABILITIES, "Q4_1", "bf16"),
        ("fp32", Abilities(True, True, True), "Q4_1", "fp32"),
        ("int8", Abilities(True, True, True), "Q4_1", "int8"),
        ("int4", Abilities(True, True, True), "F32", "int4"),
        ("int4", Abilities(True, True, False), "F32", "bf16"),
        ("int8", NO_ABILITIES, "Q8_0", "fp32"),
    ],
)
def test_forms(tiny: Tiny, dtype, can, kind, form):
    """auto follows the file and the machine; what was asked for is what is used."""
    with open_checkpoint(tiny.gguf("llama", kind).path) as checkpoint:
        assert Policy(dtype, can).form(checkpoint.tensors["blk.0.attn_q.weight"]) == form
