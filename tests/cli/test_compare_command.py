"""`tinychat compare`: it passes where the model is right, from both kinds of files, and fails where it is wrong."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import IN_GGUF, VARIANTS, one_of_each_family
from ended_command import Command
from rulers import card
from safetensors.torch import load_file, save_file
from tiny import Tiny

from tinychat.engine import reference
from tinychat.engine.loading import architecture
from tinychat.engine.opening import open_model
from tinychat.kernels import fused, plain
from tinychat.models.linear import abilities

SMALL = ("--tokens", "9", "--new-tokens", "6", "--threads", "1")


# That our models are right in every variant is for tests/models to find out; this is about the command's own part.
@pytest.mark.parametrize("variant", [*one_of_each_family(VARIANTS), "gemma3-types", "phi3-long-window", "qwen2-yarn"])
def test_every_family_from_a_folder(tinychat: Command, tiny: Tiny, variant: str) -> None:
    """Would catch: a state that has no counterpart in transformers' class, a config that it reads otherwise."""
    made = tiny.safetensors(variant)
    layers = made.model.config.num_hidden_layers
    ended = tinychat("compare", str(made.path), *SMALL, "--json")
    assert ended.status == 0, ended.stderr
    found = ended.json
    assert found["passed"]
    assert "loaded from the folder" in found["reference"]
    assert [path["kernel"] for path in found["paths"]] == ["numba", "torch"]
    for path in found["paths"]:
        assert path["passed"]
        assert len(path["states"]) == layers + 3
        assert all(0 <= state["of_tolerance"] <= 1 for state in path["states"])
        assert path["greedy"]["same"] + path["greedy"]["level"] == len(path["greedy"]["ids"]) == 6
        assert all(example["passed"] for example in path["by_hand"])


@pytest.mark.parametrize("variant", [*one_of_each_family(IN_GGUF), "llama-llama3", "phi3-long-window"])
def test_every_family_from_gguf(tinychat: Command, tiny: Tiny, variant: str) -> None:
    """Would catch: a converter's permutation, sum or transposition that the reference doesn't undo."""
    ended = tinychat("compare", str(tiny.gguf(variant, "Q8_0").path), *SMALL, "--json")
    assert ended.status == 0, ended.stderr
    assert "dequantised tensors" in ended.json["reference"]


def test_reference_of_gguf_is_the_model_in_it(tiny: Tiny) -> None:
    """Would catch: a reference filled with other numbers than the file's, which might agree with our mistakes."""
    made = tiny.gguf("llama-untied", "Q4_1")
    opened = open_model(made.path, card(made.path))
    with opened.checkpoint:
        built = reference.reference_of(opened, architecture(opened), 1)
    expected = dict(made.model.named_parameters())
    for name, parameter in built.model.named_parameters():
        assert torch.equal(parameter, expected.pop(name)), name
    assert not expected


def test_table(tinychat: Command, tiny: Tiny) -> None:
    """Would catch: a ruler that isn't printed, a tolerance or a source that isn't stated."""
    ended = tinychat("compare", str(tiny.gguf("llama", "Q4_1").path), *SMALL, "--kernels", "torch")
    assert ended.status == 0
    for shown in (
        *("transformers 5", "LlamaForCausalLM", "within 0.0001 of itself", "9 tokens at once, then 6"),
        *("into layer 2", "out of layer 2", "final norm", "logits", "greedy ids", "6 of 6", "by hand", "torch: "),
    ):
        assert shown in ended.text
    assert "numba" not in ended.text


@pytest.mark.parametrize("dtype", ["bf16", "auto", "int8"])
def test_other_dtypes(
    tinychat: Command, tiny: Tiny, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch: rounding that is called a failure, or judged by a tolerance that isn't stated; a loss not kept."""
    monkeypatch.setattr("tinychat.paths.data_dir", lambda: tmp_path)
    ended = tinychat("compare", str(tiny.gguf("gpt2", "Q8_0").path), *SMALL, "--dtype", dtype, "--json")
    assert ended.status == 0, ended.text
    assert ended.json["tolerance"] == "each state within 10% of its length"
    assert max(state["error"] for state in ended.json["paths"][0]["states"]) > 1e-4
    assert 0 < ended.json["worst_error"] < 0.1
    (shown,) = tinychat("show", str(tiny.gguf("gpt2", "Q8_0").path), "--json").json["loss"].values()
    assert shown["divergence"] == ended.json["kl_nats"]


@pytest.mark.skipif(not (abilities().blocks and abilities().bf16), reason="there is nothing to copy, or no copy")
def test_with_a_copy_for_prompts(
    tinychat: Command, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch: a copy that only one of the paths has, so that they differ; a loss that it changes."""
    monkeypatch.setattr("tinychat.paths.data_dir", lambda: tmp_path)
    path = str(tiny.gguf("gpt2", "Q8_0").path)
    found = {}
    for asked in ("never", "always"):
        words = ("--tokens", "40", "--new-tokens", "6", "--threads", "1", "--dtype", "auto", "--prefill-copy", asked)
        ended = tinychat("compare", path, *words, "--json")
        assert ended.status == 0, ended.text
        found[asked] = ended.json
    assert found["always"]["kernel"] == f"{found['never']['kernel']}+copy"
    assert found["always"]["kl_nats"] == found["never"]["kl_nats"]
    errors = {asked: [path["states"][-1]["error"] for path in found[asked]["paths"]] for asked in found}
    assert min(errors["always"]) > 1.5 * max(errors["never"]), errors


def test_a_wrong_norm_fails(tinychat: Command, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: rulers that pass whatever the model computes; states, and the kernel's own example, have to fail."""

    def wrong(residual: torch.Tensor, *rest: Any) -> torch.Tensor:
        return plain.__dict__["right"](residual, *rest) * 1.001

    monkeypatch.setitem(plain.__dict__, "right", plain.add_rms_norm)
    monkeypatch.setattr(plain, "add_rms_norm", wrong)
    ended = tinychat("compare", str(tiny.safetensors("llama").path), *SMALL, "--json", "--kernels", "torch")
    assert ended.status == 1
    (path,) = ended.json["paths"]
    assert not path["passed"]
    passed = {state["name"]: state["passed"] for state in path["states"]}
    assert passed["into layer 0"]
    assert not passed["into layer 1"]
    assert {example["name"] for example in path["by_hand"] if not example["passed"]} == {"RMS norm"}


def test_wrong_attention_is_seen_in_the_fused_path_alone(
    tinychat: Command, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch: a path that is reported, but not the one that was run; a failure that leaves the status at 0."""
    right = fused.silu_mul
    monkeypatch.setattr(fused, "silu_mul", lambda gate_up: right(gate_up) * 1.01)
    ended = tinychat("compare", str(tiny.safetensors("llama").path), *SMALL)
    assert ended.status == 1
    assert "FAIL" in ended.text
    assert "FAILS: gated SiLU" in ended.text
    ended = tinychat("compare", str(tiny.safetensors("llama").path), *SMALL, "--kernels", "torch")
    assert ended.status == 0


def test_without_transformers(tinychat: Command, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: a traceback where the extra isn't installed."""
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name == "transformers":
            raise ImportError("No module named 'transformers'")
        return real(name, *rest, **named)

    path = str(tiny.safetensors("llama").path)
    monkeypatch.setattr(builtins, "__import__", refuse)
    ended = tinychat("compare", path, *SMALL)
    assert (ended.status, ended.stdout) == (1, b"")
    assert "compare needs transformers" in ended.stderr
    assert "pip install 'transformers>=5.24,<6'" in ended.stderr


def test_more_than_the_context_holds(tinychat: Command, gpt2_folder: Path) -> None:
    """Would catch: a text that is cut short in silence."""
    ended = tinychat("compare", str(gpt2_folder), "--tokens", "128", "--new-tokens", "6")
    assert (ended.status, ended.stdout) == (2, b"")
    assert "128 tokens and 6 new ones are more than the context of repo holds, 128." in ended.stderr


def test_a_text_across_a_change_of_the_rotation(tinychat: Command, tiny: Tiny) -> None:
    """Would catch: right models that are called different, since one turns a token by the length it stood at."""
    variant = next(name for name in VARIANTS if name.startswith("phi3-long"))
    ended = tinychat("compare", str(tiny.safetensors(variant).path), "--tokens", "12", "--new-tokens", "6")
    assert (ended.status, ended.stdout) == (2, b"")
    assert "Phi-3 turns longer sequences otherwise" in ended.stderr


def test_a_folder_that_transformers_finds_incomplete(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch: a reference with random numbers where a name is missing, of which transformers only warns."""
    made = tiny.safetensors("llama-untied")
    for file in made.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(reference.TinychatError, match=r"finds no model\.layers\.1\.mlp\.up_proj\.weight"):
        reference._of_folder(str(tmp_path))


@pytest.mark.model
def test_the_real_smollm2(tinychat: Command, smollm2_path: Path) -> None:
    """Would catch: numbers beyond 20,000 that break a tolerance made for tiny models."""
    ended = tinychat("compare", str(smollm2_path), "--tokens", "48", "--new-tokens", "24", "--json")
    assert ended.status == 0, ended.text
    for path in ended.json["paths"]:
        assert len(path["states"]) == 30 + 3
        assert path["greedy"]["same"] == 24
        assert max(state["largest"] for state in path["states"]) > 5000
