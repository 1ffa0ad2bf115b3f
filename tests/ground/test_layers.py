"""The floors of the house: what stands on what, as contracts and as what really gets imported."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {
    *("torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "numba", "gguf", "jinja2", "transformers"),
    *("textual", "rich", "typer", "psutil", "pydantic"),
}
SCREEN = {"textual", "rich"}
ENGINE = HEAVY - SCREEN - {"typer", "pydantic", "psutil"}
GROUND = ("protocol", "catalog", "paths", "resources", "ranges", "filekind", "pictures", "errors")


def imported(*modules: str) -> set[str]:
    """Return the heavy packages that a fresh process has imported once it has imported `modules`."""
    program = f"import sys, {', '.join(modules)}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return {name.partition(".")[0] for name in done.stdout.split()} & HEAVY


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        # What the ground stands on is what every room pays for.
        (tuple(f"tinychat.{name}" for name in GROUND), HEAVY),
        (("tinychat.cli",), HEAVY),
        (("tinychat.cli.app",), ENGINE | SCREEN),
        (("tinychat.ui.app",), ENGINE),
        (("tinychat.chats",), HEAVY),
        (("tinychat.hub",), HEAVY - {"huggingface_hub"}),
        # The engine's thread imports torch itself, after the header and the tokenizer have been read.
        (("tinychat.engine.thread",), {"torch", "numba", "transformers", "typer"} | SCREEN),
        (("tinychat.engine.loading", "tinychat.engine.bench", "tinychat.engine.preview"), {"typer"} | SCREEN),
        (("tinychat.text.tokenizer", "tinychat.weights"), {"torch", "numba", "typer"} | SCREEN),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_nothing_is_imported_that_is_not_needed(modules: tuple[str, ...], without: set[str]) -> None:
    """Would catch: a screen that waits for torch, an engine that needs a terminal, `--version` in a second."""
    assert not imported(*modules) & without


def test_the_probe_sees_what_is_imported() -> None:
    """Would catch: a probe that finds nothing because it looks at the wrong names."""
    assert {"torch", "numpy"} <= imported("tinychat.engine.loading")
    assert {"textual", "rich"} <= imported("tinychat.ui.app")


def test_the_contracts_hold() -> None:
    """Would catch: a room that imports its neighbour."""
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_help_comes_at_once() -> None:
    """Would catch: a slow start on the way to `--help`, whatever it is; measured against Python's own."""

    def seconds(*words: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], capture_output=True, check=True, cwd=ROOT)
        return time.perf_counter() - began

    ours, python = (min(seconds(*words) for _ in range(3)) for words in (("-m", "tinychat", "--help"), ("-c", "")))
    assert ours < python + 1.0
