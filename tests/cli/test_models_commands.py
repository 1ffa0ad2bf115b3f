"""`pull`, `list` and `show`: what is on the machine, from where, and what it would take."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ended_command import Command
from safetensors.torch import load_file, save_file
from tiny import Tiny

from tinychat.models.linear import abilities

if TYPE_CHECKING:
    from conftest import HubForTests

SHOWN = [
    *("arch", "parameters", "context", "vocabulary", "template", "format", "sampler", "tensors", "becomes"),
    *("weights_bytes", "prefill_copy", "cache_bytes", "loss", "fits"),
]
WIDTH, LAYERS, POSITIONS, VOCABULARY = 32, 2, 128, 50257


def test_pull_then_list_then_show(tinychat: Command, loopback_hub: HubForTests) -> None:
    """Would catch: a model that is fetched and then not found, or listed with another name, size or place."""
    before = tinychat("list", "--json").json
    assert all(entry["name"] != "gpt2" for entry in before)
    assert tinychat("show", "gpt2").status == 1
    pulled = tinychat("pull", "gpt2")
    assert pulled.status == 0
    folder = Path(pulled.text.removesuffix("\n"))
    assert (folder / "model.safetensors").is_file()
    asked = len(loopback_hub.server.requests)
    assert tinychat("pull", "gpt2").stdout == pulled.stdout
    (entry,) = [entry for entry in tinychat("list", "--json").json if entry["name"] == "gpt2"]
    assert list(entry) == ["name", "source", "path", "bytes", "complete", "last_used"]
    assert entry["source"] == "openai-community/gpt2@main"
    assert entry["path"] == str(folder)
    assert entry["bytes"] == sum(file.stat().st_size for file in folder.iterdir())
    assert entry["complete"] is True
    assert 0 <= time.time() - entry["last_used"] < 600
    assert tinychat("show", "gpt2").status == 0
    assert len(loopback_hub.server.requests) == asked


def test_pull_refuses_before_weights(tinychat: Command, loopback_hub: HubForTests, gpt2_folder: Path) -> None:
    """Would catch: gigabytes fetched of a model that tinychat doesn't run."""
    repo = loopback_hub.server.add("org/bert", gpt2_folder)
    repo.files["config.json"] = b'{"model_type": "bert", "architectures": ["BertForMaskedLM"]}'
    ended = tinychat("pull", "org/bert")
    assert (ended.status, ended.stdout) == (1, b"")
    assert "BertForMaskedLM (org/bert) is not a decoder tinychat supports. It supports " in ended.stderr
    assert all(family in ended.stderr for family in ("gpt2", "llama"))
    assert loopback_hub.server.asked(part="safetensors") == []


def test_tokenize_fetches_no_weights(tinychat: Command, loopback_hub: HubForTests) -> None:
    """Would catch: gigabytes fetched to split a word."""
    assert tinychat("tokenize", "gpt2", "Hello, world", "--ids").json == [15496, 11, 995]
    assert loopback_hub.server.asked(part="model.safetensors") == []


def test_list_for_people(tinychat: Command, loopback_hub: HubForTests) -> None:
    """Would catch: names that `run` takes but nobody can find."""
    text = tinychat("list").text
    for name in ("smollm2", "gpt2", "distilgpt2", "gpt2-medium", "tinyllama", "smollm2-360m", "smollm2-1.7b"):
        assert name in text


def test_show_adds_up(tinychat: Command, gpt2_folder: Path) -> None:
    """Would catch: sizes that are guessed; keys other than those promised."""
    shown = tinychat("show", str(gpt2_folder), "--json").json
    assert list(shown) == SHOWN
    matrices = VOCABULARY * WIDTH + POSITIONS * WIDTH + LAYERS * 12 * WIDTH * WIDTH
    vectors = LAYERS * 13 * WIDTH + 2 * WIDTH
    assert shown["parameters"] == matrices + vectors
    assert (shown["arch"], shown["format"], shown["template"]) == ("GPT-2", "base", None)
    assert (shown["context"], shown["vocabulary"]) == (POSITIONS, VOCABULARY)
    masks = LAYERS * POSITIONS * POSITIONS
    assert sum(size for _, size in shown["tensors"].values()) == 4 * (matrices + vectors + masks)
    # The table that is looked up and the head that is multiplied by are two copies of the tied matrix; in tiles of 16
    # rows they are one.
    more = -VOCABULARY % 16 if abilities().fp32_tiles else VOCABULARY
    assert shown["weights_bytes"]["fp32"] == 4 * (matrices + vectors + more * WIDTH)
    assert set(shown["weights_bytes"]) == {"auto", "fp32", "bf16", "int8", "int4"}
    assert shown["weights_bytes"]["bf16"] < shown["weights_bytes"]["fp32"]
    width = 2 if shown["weights_bytes"]["auto"] == shown["weights_bytes"]["bf16"] else 4
    # Four blocks of 32 tokens, and two more for branches.
    assert shown["cache_bytes"] == {"128": 2 * LAYERS * WIDTH * 6 * 32 * width}
    assert shown["fits"] is True
    assert shown["sampler"]["temperature"] == [0.8, "built-in"]
    assert shown["sampler"]["seed"] == [None, "built-in"]


def test_show_says_what_becomes_of_each_type(tinychat: Command, tiny: Tiny) -> None:
    """Would catch: weights widened in silence; a type that is said to keep its codes and doesn't; an unused type."""
    kinds = {"attn_v": "Q6_K", "ffn_down": "Q5_0"}
    path = str(tiny.gguf("llama-theta", "Q4_K", kinds=kinds, embedding="Q6_K").path)
    shown = tinychat("show", path, "--json").json
    (dense,) = shown["becomes"]["Q6_K"]
    assert dense in ("bf16", "fp32")
    assert shown["becomes"] == {"Q6_K": [dense], "F32": ["fp32"], "Q4_K": ["int4"], "Q5_0": ["int8"]}
    assert shown["becomes"].keys() == shown["tensors"].keys()
    (line,) = [line for line in tinychat("show", path).text.splitlines() if line.startswith("becomes")]
    for words in (
        f"Q6_K -> {dense} (dequantised)",
        "F32 -> fp32",
        "Q4_K -> int4 (codes as they are)",
        "Q5_0 -> int8 (codes as they are)",
    ):
        assert words in line


def test_show_says_whether_prompts_get_a_copy(tinychat: Command, tiny: Tiny, gpt2_folder: Path) -> None:
    """Would catch: a copy that is kept or left out without a reason; a size that leaves it out of what has to fit."""
    made = tiny.gguf("llama", "Q4_1")
    copy = tinychat("show", str(made.path), "--json").json["prefill_copy"]
    matrices = [p for name, p in made.model.named_parameters() if ".layers." in name and p.dim() == 2]
    assert copy["bytes"] == 2 * sum(p.numel() for p in matrices)
    assert copy["reason"].startswith("Long prompts are multiplied by ")
    assert f"copy        {copy['reason']}" in tinychat("show", str(made.path)).text
    dense = tinychat("show", str(gpt2_folder), "--json").json["prefill_copy"]
    assert dense == {"kept": False, "bytes": 0, "reason": ""}
    assert "copy  " not in tinychat("show", str(gpt2_folder)).text


def test_show_refuses_what_is_no_weight(tinychat: Command, tiny: Tiny, tmp_path: Path) -> None:
    """Would catch: a size told of a model that can't be loaded."""
    folder = Path(shutil.copytree(tiny.safetensors("llama").path, tmp_path / "integers"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].int()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ended = tinychat("show", str(folder))
    assert (ended.status, ended.stdout) == (1, b"")
    assert "Tensor 'model.norm.weight' of" in ended.stderr
    assert "is stored as I32, which tinychat doesn't read as weights" in ended.stderr


def test_show_a_model_of_pickles(tinychat: Command, tiny: Tiny) -> None:
    """Would catch: a model of PyTorch's own files that is opened by one command and not by another."""
    pickled = tinychat("show", str(tiny.pickled("llama", "BF16", shards=True).path), "--json").json
    expected = tinychat("show", str(tiny.safetensors("llama", "BF16").path), "--json").json
    assert pickled == expected


@pytest.mark.model
def test_show_the_real_model(tinychat: Command, smollm2_path: Path) -> None:
    """Would catch: a header read wrongly; tensors counted by another type than the file's."""
    shown = tinychat("show", str(smollm2_path), "--json").json
    assert {kind: count for kind, (count, _) in shown["tensors"].items()} == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert shown["parameters"] == 134_515_008
    assert (shown["arch"], shown["format"], shown["vocabulary"], shown["context"]) == ("Llama", "chat", 49152, 8192)
    assert "<|im_start|>" in shown["template"]
    assert shown["cache_bytes"]["1024"] in (41 * 32 * 30 * 2 * 192 * size for size in (2, 4))


def test_themes(tinychat: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Would catch: a theme of ours or of the person's own missing; a broken one that hides the others."""
    monkeypatch.setattr("tinychat.paths.config_dir", lambda: tmp_path)
    (tmp_path / "themes").mkdir()
    (tmp_path / "themes" / "mine.toml").write_text('[colors]\nprimary = "#123456"\n')
    (tmp_path / "themes" / "bad.toml").write_text('[colors]\nprimary = "blurple"\n')
    ended = tinychat("themes")
    names = ended.text.splitlines()
    assert ended.status == 0
    assert {"tinychat-dark", "tinychat-light", "mine", "nord", "textual-dark"} <= set(names)
    assert len(set(names)) == len(names)
    assert "bad.toml" in ended.stderr
