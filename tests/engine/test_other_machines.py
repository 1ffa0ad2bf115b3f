"""Machines that lack what the fast paths need: slower, said so, and in fp32 the same text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driven import Driven, driven, replies
from rulers import NO_ABILITIES, build, greedy
from tiny import Tiny

from tinychat import kernels
from tinychat.engine import loading
from tinychat.models.linear import Abilities, abilities
from tinychat.protocol import PromptRendered

LONG = "The capital of France is Paris. The capital of Italy is Rome. "


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


def expected(tiny_path: Path, engine: Driven, turn_id: int) -> list[int]:
    """Return the greedy ids of the reference's own path: fp32, plain products, plain kernels."""
    prompt = engine.of(PromptRendered, turn_id=turn_id)[0].ids
    return greedy(build(tiny_path, "fp32", can=NO_ABILITIES).context(256), prompt, 24)


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
@pytest.mark.parametrize("dtype", ["fp32", "auto"])
def test_without_any_packed_product(tiny: Tiny, engine, monkeypatch, variant, dtype):
    """The plain products serve: every weight in fp32, the same text, and a notice for each thing that is lacking."""
    monkeypatch.setattr(loading, "abilities", lambda: NO_ABILITIES)
    path = tiny.gguf(variant, "Q4_1").path
    info = engine.load(path, dtype=dtype, context=128).info
    assert (info.dtype, info.head_dtype) == ("fp32", "fp32")
    finished = engine.reply(LONG[:40], count=24)
    assert list(finished.ids) == expected(path, engine, 1)
    notices = " ".join(info.notices)
    assert "no packed fp32 product" in notices
    assert ("quantised weights became fp32" in notices) == (dtype == "auto")


@pytest.mark.parametrize(
    ("can", "dtype", "kind", "form", "notices"),
    [
        (Abilities(True, True, True), "auto", "Q4_1", "int4", []),
        (Abilities(True, True, True), "auto", "F16", "bf16", []),
        (Abilities(True, False, True), "auto", "F16", "fp32", ["no packed bf16 product: dense weights are fp32"]),
        (Abilities(True, False, True), "auto", "Q8_0", "int8", []),
        (Abilities(True, True, False), "auto", "Q4_0", "bf16", ["quantised weights became bf16"]),
        (Abilities(True, False, True), "bf16", "F16", "bf16", ["no packed bf16 product: the plain one serves"]),
        (Abilities(False, True, True), "fp32", "F16", "fp32", ["no packed fp32 product"]),
        (Abilities(False, True, True), "auto", "F16", "bf16", []),
    ],
)
def test_notices(tiny: Tiny, engine, monkeypatch, can, dtype, kind, form, notices):
    """Said where it changes something, and only there."""
    here = abilities()
    if any(wanted and not has for wanted, has in ((can.bf16, here.bf16), (can.blocks, here.blocks))):
        pytest.skip("this machine can't do what the case is about")
    monkeypatch.setattr(loading, "abilities", lambda: can)
    info = engine.load(tiny.gguf("llama", kind).path, dtype=dtype).info
    assert info.dtype == form
    assert len(info.notices) == len(notices)
    assert all(any(words in notice for notice in info.notices) for words in notices)
    assert engine.reply(count=5).new_tokens == 5


def test_without_numba(tiny: Tiny, engine, monkeypatch):
    """The torch path serves, and the person is told why it is slower."""
    monkeypatch.delattr(kernels, "fused")
    monkeypatch.setitem(sys.modules, "tinychat.kernels.fused", None)
    path = tiny.safetensors("llama").path
    info = engine.load(path).info
    assert info.kernel == "torch"
    assert any("Numba can't be imported" in notice for notice in info.notices)
    finished = engine.reply(LONG, count=24)
    assert (list(finished.ids), finished.kernel) == (expected(path, engine, 1), "torch")


SCRIPT = """
import json, sys

import driven
from tinychat.models.linear import abilities

driven.DEADLINE = 250  # every kernel is compiled anew, by what may be a busy machine
made, can = driven.replies(json.loads(sys.argv[1])), abilities()
print(json.dumps(made | {"can": [can.fp32, can.bf16, can.blocks]}))
"""


def elsewhere(cases: list[tuple[str, str, str]], **environment: str) -> dict[str, Any]:
    """Return the replies that a process of its own gives, and what it can."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(cases)],
        env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_an_older_cpu(tiny: Tiny):
    """AVX2 is all it has: no packed bf16 product (oneDNN raises), block products in other instructions. In fp32 the
    text is this machine's; in `auto` it says what became of what."""
    cases = [
        (f"{variant} {kind} {dtype}", str(tiny.gguf(variant, kind).path), dtype)
        for variant in ("gpt2", "llama")
        for kind, dtype in (("F16", "fp32"), ("Q4_1", "fp32"), ("F16", "auto"), ("Q4_1", "auto"))
    ]
    here = replies(cases)
    older = elsewhere(
        cases, ONEDNN_MAX_CPU_ISA="AVX2", ATEN_CPU_CAPABILITY="avx2", NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES=""
    )
    assert older["can"] == [True, False, True]
    for name, _, dtype in cases:
        ours, theirs = here[name], older[name]
        if dtype == "fp32":
            assert theirs["ids"] == ours["ids"]
            assert theirs["notices"] == []
        elif "F16" in name:
            assert theirs["dtype"] == "fp32"
            assert "no packed bf16 product" in theirs["notices"][0]
            assert theirs["ids"] == here[name.replace("auto", "fp32")]["ids"], "exact, but slower"
        else:
            assert theirs["dtype"] == "int4"
            assert theirs["kernel"] == "numba"


@pytest.mark.slow
def test_torch_is_imported_by_the_engine_alone(tiny: Tiny):
    """After the tokenizer is ready, so that text can be inspected while torch starts; and not by the import of the
    engine, nor by the download."""
    script = """
import sys, threading, time
from pathlib import Path

from tinychat.catalog import FileSource, ModelCard
from tinychat.engine.thread import LocalEngine
from tinychat.protocol import LoadModel

assert not {"torch", "numba", "transformers"} & sys.modules.keys()
lock, told, seen = threading.Lock(), [], []


def poll():
    with lock:
        told.extend(type(event).__name__ for event in engine.poll())


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            poll()
            seen.append((threading.current_thread().name, list(told)))
        return None


sys.meta_path.insert(0, Finder())
engine = LocalEngine()
engine.send(LoadModel(1, ModelCard("x", FileSource(sys.argv[1])), threads=1))
end = time.monotonic() + 60
while "ModelReady" not in told and time.monotonic() < end:
    poll()
    time.sleep(0.01)
assert engine.close(20)
[(name, before)] = seen
assert name == "engine", name
assert "TokenizerReady" in before, before
assert "ModelReady" in told, told
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tiny.gguf("llama", "Q4_1").path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
