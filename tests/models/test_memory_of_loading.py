"""How much memory loading takes at its peak: at most 1.3 times what the weights take afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import checkpoints
import pytest
from gguf_files import write_gguf
from transformers import LlamaConfig

from tinychat.models.linear import abilities

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux's /proc"),
    pytest.mark.skipif(not abilities().bf16 or not abilities().blocks, reason="the forms are of a full machine"),
]

SCRIPT = """
import json, sys
from dataclasses import fields
from pathlib import Path

import torch
from tinychat.catalog import FileSource, ModelCard
from tinychat.engine.loading import architecture
from tinychat.engine.memory import given_back_at_once
from tinychat.engine.opening import open_model
from tinychat.kernels import fused
from tinychat.models.linear import abilities
from tinychat.models.policy import Policy

def resident(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])

policy = Policy(sys.argv[2], abilities(), head=sys.argv[3], copy=sys.argv[4] == "copy")
for field in fields(policy.can):  # what is tried is compiled, and that stays
    getattr(policy.can, field.name)
opened = open_model(Path(sys.argv[1]), ModelCard("large", FileSource(sys.argv[1])))
with torch.inference_mode(), opened.checkpoint:
    found = architecture(opened)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    with given_back_at_once():
        model, report = found.walk(policy, fused, lambda _: None)
peak = resident("VmHWM")
print(json.dumps({"weights": report.nbytes, "after": resident("VmRSS") - before, "peak": peak - before}))
"""
"""`ru_maxrss` won't do: a child begins with its parent's."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A Llama of 143 M random parameters; writes it once a type, as GGUF."""
    folder, made = tmp_path_factory.mktemp("large"), {}

    def config() -> LlamaConfig:
        tiny = checkpoints.VARIANTS["llama"]().to_dict()
        return LlamaConfig(
            **tiny | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "head_dim": 256}
        )

    def write(kind: str) -> Path:
        if kind not in made:
            made[kind] = folder / f"{kind}.gguf"
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(checkpoints.VARIANTS, "llama-large", config)
                write_gguf(made[kind], "llama-large", kind)
        return made[kind]

    return write


@pytest.mark.parametrize(
    ("kind", "dtype", "head", "copy"),
    [
        ("BF16", "auto", "auto", ""),
        ("F32", "auto", "auto", ""),
        ("F32", "fp32", "auto", ""),
        ("Q4_1", "auto", "auto", ""),
        ("Q4_1", "auto", "auto", "copy"),
        ("Q4_1", "int8", "auto", ""),
        ("BF16", "int8", "int8", ""),
        ("BF16", "int4", "int4", ""),
    ],
)
def test_peak(large, kind, dtype, head, copy):
    """Catches matrices that wait for others, copies that outlive their use, and memory that is never given back."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(large(kind)), dtype, head, copy],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    print(kind, dtype, copy, {name: f"{size / 1e6:.0f} MB" for name, size in found.items()})
    assert found["peak"] <= 1.3 * found["after"], found
    # Beside the weights, oneDNN and the allocator take some memory of their own.
    assert found["after"] <= 1.15 * found["weights"] + 20e6, found
