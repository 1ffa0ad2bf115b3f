"""Fixtures of the command line's tests: run a command in this process, or in one of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended_command import Command, Ended, heed_signals
from gpt2_repo import write_gpt2_repo, write_tokenizer
from safetensors.numpy import load_file, save_file

from tinychat.cli.ending import run_command

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tinychat(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Command]:
    """Run a command in this process: `tinychat("tokenize", model, stdin=b"...")`. stdin is a pipe, empty by default."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def run(*words: str, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capfdbinary.readouterr()
        status = run_command(list(words))
        out, err = capfdbinary.readouterr()
        return Ended(status, out, err.decode())

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables for a process of its own: this checkout, its logs in the test's folder, no wish about colours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NO_COLOR", "HF_"))}
    folders = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("STATE", "DATA")}
    return kept | folders | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a command as a process of its own; what still runs when the test ends is killed."""
    running: list[subprocess.Popen[bytes]] = []

    def run(*words: str, python: tuple[str, ...] = (), **options: Any) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        pipes |= {"stdin": subprocess.DEVNULL, "env": environment, "preexec_fn": heed_signals} | options
        running.append(subprocess.Popen([sys.executable, *python, "-m", "tinychat", *words], **pipes))
        return running[-1]

    yield run
    for process in running:
        with process:
            process.kill()


@pytest.fixture(scope="session")
def vocabulary_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with GPT-2's real tokenizer and nothing else."""
    folder = tmp_path_factory.mktemp("vocabulary")
    write_tokenizer(folder)
    return str(folder)


@pytest.fixture(scope="session")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny GPT-2 that, asked greedily, talks for tens of thousands of tokens."""
    folder = write_gpt2_repo(tmp_path_factory.mktemp("talkative") / "repo", layers=1)
    positions = 60_000
    weights = folder / "model.safetensors"
    tensors = load_file(weights) | {"wpe.weight": np.random.default_rng(0).normal(0, 0.02, (positions, 32))}
    kept = {name: tensor.astype(np.float32) for name, tensor in tensors.items() if ".attn.bias" not in name}
    save_file(kept, weights)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_positions": positions, "n_ctx": positions}))
    return str(folder)
