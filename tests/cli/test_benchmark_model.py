"""The random model that `tests/benchmarks/llama_1b.py` writes, here a tiny one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from ended_command import Command

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "llama_1b.py"


def test_it_is_a_model(tinychat: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: a file that is written wrongly, a shape that isn't Llama's, a vocabulary too small for the ids that
    benchmarks prompt with."""
    spec = importlib.util.spec_from_file_location("llama_1b", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, value in (("WIDTH", 64), ("HEADS", 4), ("KV_HEADS", 2), ("INNER", 96)):
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr("tinychat.engine.bench._LARGE", 2**22)
    path = tmp_path / "model.gguf"
    parameters = script.write(path, layers=2)
    assert parameters == 2 * 40960 * 64 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96)
    ended = tinychat("compare", str(path), "--tokens", "8", "--new-tokens", "4", "--kernels", "torch")
    assert ended.status == 0, ended.text + ended.stderr
    ended = tinychat("bench", str(path), "--prompt-tokens", "16", "--new-tokens", "4", "--runs", "1", "--json")
    assert ended.json["dtype"] in ("int4", "bf16", "fp32")
    assert tinychat("tokenize", str(path), "a t", "--ids").json == [100, 259]  # llama.cpp's, too
