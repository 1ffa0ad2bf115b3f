"""`tinychat run A --beside B`: how B is named, and what a pipe gets."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from ended_command import Command
from terminal import ENTER, ESCAPE, Terminal

from tinychat.catalog import Catalog
from tinychat.cli.app import app
from tinychat.cli.second import second_model
from tinychat.errors import UsageError
from tinychat.protocol import LoadModel

FIRST = LoadModel(1, Catalog.load().resolve("smollm2"), dtype="int8", sampler=(("temperature", 0.5), ("seed", 3)))


def named(words: str, first: LoadModel = FIRST) -> LoadModel:
    """What `--beside WORDS` loads."""
    command = typer.main.get_command(app)
    run = command.get_command(command.make_context("tinychat", ["run"]), "run")  # type: ignore[attr-defined]
    return second_model(words, run.make_context("run", []), first)


def test_what_isn_t_named_is_as_in_the_first() -> None:
    """Nothing at all, too."""
    assert named("") == FIRST


def test_another_model() -> None:
    """In the same form, by the same settings."""
    made = named("gpt2")
    assert (made.card.name, made.dtype, made.sampler) == ("gpt2", "int8", FIRST.sampler)


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("--dtype fp32", {"dtype": "fp32"}),
        ("smollm2 --dtype=auto --head int4", {"dtype": "auto", "head": "int4"}),
        ("--cache-dtype int8 --prefill-copy never --context 512", {
            "cache_dtype": "int8", "prefill_copy": "never", "context": 512}),
    ],
)  # fmt: skip
def test_another_form(words: str, changed: dict[str, Any]) -> None:
    """The flags of the form, each; also back to what is the default otherwise."""
    made = named(words)
    assert {name: getattr(made, name) for name in changed} == changed
    assert made.sampler == FIRST.sampler


def test_other_settings() -> None:
    """Short and long flags, beside those of the first."""
    made = named("-t 1.5 --top-k 7 --min-p 0.1 --order llama.cpp --speculate 2")
    assert dict(made.sampler) == {
        "temperature": 1.5, "seed": 3, "top_k": 7, "min_p": 0.1, "order": "llama.cpp", "speculate": 2,
    }  # fmt: skip
    assert dict(named("--draft gpt2").sampler)["speculate"] == 4


def test_a_path_with_spaces(tmp_path: Path) -> None:
    """Quoted within the quotes."""
    file = tmp_path / "my model.gguf"
    file.write_bytes(b"GGUF")
    assert str(file) in str(named(f"'{file}' -t 1").card.source)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("gpt2 Hello", "both answer one prompt"),
        ("--theme x", "--theme holds for both"),
        ("--beside gpt2", "--beside holds for both"),
        ("-n 5", "--max-tokens holds for both"),
        ("--dtype fp16", "--dtype is 'fp16'"),
        ("-t 9", "0 to 5"),
        ("--nope", "No such option: --nope"),
        ("'gpt2", "No closing quotation"),
    ],
)
def test_words_that_make_no_sense(words: str, told: str) -> None:
    """Each is a sentence that says what, and no traceback."""
    with pytest.raises(UsageError, match=told):
        named(words)


# ---------------------------------------------------------------------------------------------------------------------
# The whole program


def test_both_as_text(tinychat: Command, gpt2_folder: Path) -> None:
    """One after the other, each with its name; the same seed and settings: the same text."""
    done = tinychat("run", str(gpt2_folder), "--beside", "", "Hello", "--raw", "-n", "6", "--seed", "4", "-t", "1")
    assert done.status == 0, done.stderr
    first, second = done.text.split("\n\nB: ")
    assert first.startswith("A: ")
    assert first.split("\n", 1)[1] == second.split("\n", 1)[1].removesuffix("\n")
    assert "held once" in done.stderr


def test_both_as_objects(tinychat: Command, gpt2_folder: Path) -> None:
    """Each with its side; a divergence a token up to the first that differs."""
    words = ("run", str(gpt2_folder), "--beside", "--dtype int8 -t 2", "Hello", "--raw", "-n", "6", "-t", "0", "--json")
    done = tinychat(*words)
    assert done.status == 0, done.stderr
    objects = [json.loads(line) for line in done.text.splitlines()]
    sides = {side: [o for o in objects if o.get("side") == side] for side in "AB"}
    for side, dtype in (("A", None), ("B", "int8")):
        kinds = [o["type"] for o in sides[side]]
        assert kinds == ["ready", *["token"] * 6, "done"]
        assert dtype in (None, sides[side][0]["dtype"])
    told = [o for o in objects if o["type"] == "divergence"]
    ids = [[o["id"] for o in sides[side] if o["type"] == "token"] for side in "AB"]
    same = next((n for n in range(6) if ids[0][n] != ids[1][n]), 5)
    assert [o["index"] for o in told] == list(range(same + 1))
    assert all(o["nats"] >= 0 for o in told)
    assert sides["A"][-1]["seed"] == sides["B"][-1]["seed"]


@pytest.mark.parametrize("flag", [["--view", "why"], ["--trace", "x"], ["--record", "y"]])
def test_what_has_no_place_beside_it(tinychat: Command, gpt2_folder: Path, flag: list[str]) -> None:
    """Refused in a sentence, before anything is loaded."""
    done = tinychat("run", str(gpt2_folder), "--beside", "-t 1", "Hello", *flag)
    assert done.status == 2
    assert f"{flag[0]} has no place" in done.stderr


def test_one_that_can_t_be_loaded(tinychat: Command, gpt2_folder: Path, tmp_path: Path) -> None:
    """Said, with the status of what could not be done."""
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64)
    done = tinychat("run", str(gpt2_folder), "--beside", str(bad), "Hello")
    assert done.status == 1
    assert "bad.gguf" in done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# The screen, in a pseudo-terminal


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.close()


@pytest.mark.pty
def test_the_screen(terminals: list[Terminal], gpt2_folder: Path, tmp_path: Path) -> None:
    """Two forms of one model, for real: asked once, both answer, they part, Esc stops both, and it leaves at once."""
    command = [sys.executable, "-m", "tinychat", "run", str(gpt2_folder), "--raw", "-t", "0", "-n", "100000"]
    terminal = Terminal([*command, "--beside", "-t 1.5 --dtype fp32"], XDG_STATE_HOME=str(tmp_path))
    terminals.append(terminal)
    terminal.until(lambda: terminal.text.count("A base model") == 2)
    terminal.send("Once upon a time" + ENTER)
    terminal.until(lambda: terminal.text.count("≠ first difference") == 2)
    terminal.send(ESCAPE)
    terminal.until(lambda: terminal.text.count("Stopped by you.") == 2)
    terminal.send("\x07")  # Ctrl+G
    terminal.until("KL nats")
    status, seconds = terminal.leave()
    assert status == 0
    assert seconds < 3
    assert terminal.restored
