"""A recording in a pseudo-terminal: what reaches the terminal, and a chat with the real model from end to end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nasty import NASTY, OBEYED
from terminal import ENTER, F3, F6, Terminal

from tinychat.catalog import FileSource, ModelCard
from tinychat.engine.recorded import read
from tinychat.engine.recording import Recorder
from tinychat.protocol import (
    Generate,
    LoadModel,
    Message,
    ModelInfo,
    ModelReady,
    Notice,
    SamplerSettings,
    SamplerUsed,
    TokenEmitted,
    TurnFinished,
)

pytestmark = pytest.mark.pty

ALL = "   ".join(reversed(NASTY))
RIGHT = "\x1b[C"
Open = Callable[..., Terminal]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Run a command of tinychat in a terminal."""
    terminals: list[Terminal] = []

    def start(*words: str, columns: int = 80, rows: int = 24) -> Terminal:
        command = [sys.executable, "-m", "tinychat", *words]
        terminals.append(Terminal(command, columns, rows, XDG_STATE_HOME=str(tmp_path)))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def test_nothing_that_a_terminal_obeys_comes_out_of_a_recording(opened: Open, tmp_path: Path) -> None:
    """Would catch: a file from a stranger that writes the clipboard, sets the title or clears the screen."""
    path = tmp_path / "chat.jsonl"
    info = ModelInfo(ALL, ALL, 1, ALL, ALL, ALL, "chat", True, 64, 64, 1, 1, 1, ALL, 9, ALL, 1, 0.1, notices=(ALL,))
    recorder = Recorder(path)
    said = TokenEmitted(2, 0, 1, ALL.encode(errors="replace"), ALL, seconds=0.0, logprob=-1.0)
    for way, value in (
        ("command", LoadModel(1, ModelCard(ALL, FileSource(ALL), summary=ALL))),
        ("event", ModelReady(1, info, SamplerSettings(), (("top_p", ALL),))),
        ("command", Generate(2, (Message("system", ALL), Message("user", ALL)))),
        ("event", Notice(ALL, 2)),
        ("event", said),
        ("event", TurnFinished(2, "eos", (1,), ALL, "", 1, 0, 1, 0.1, 0.1, 0.1, 7, ALL)),
    ):
        recorder.write(way, value)
    recorder.end()
    terminal = opened("replay", str(path), columns=160, rows=48)
    terminal.until("The recording ends here")
    terminal.send(F6)
    terminal.until("p prompt")
    terminal.send("wlp")
    terminal.until("Nobody looked at this")
    assert terminal.leave()[0] == 0
    assert terminal.restored
    for payload in OBEYED:
        assert payload not in terminal.written, payload


@pytest.mark.model
def test_a_slider_is_moved_in_a_real_reply_and_all_of_it_comes_again(
    opened: Open, smollm2_path: Path, tmp_path: Path
) -> None:
    """Would catch: anything between a key in a real chat and the same ids made again by the real model."""
    path = tmp_path / "chat.jsonl"
    chat = opened("run", str(smollm2_path), "--record", str(path), "-n", "120")
    chat.until("Context 8,192")
    chat.send("Tell me a long story about a fox." + ENTER)
    chat.until("answering")
    chat.send(F3)
    chat.send(RIGHT * 4)
    chat.until("tokens · ")
    assert chat.leave()[0] == 0
    recording = read(path)
    assert recording.problem == ""
    moved = [entry.said for entry in recording.entries if isinstance(entry.said, SamplerUsed)]
    assert len(moved) > 1
    assert moved[-1].sampler.temperature > moved[0].sampler.temperature
    words = [sys.executable, "-m", "tinychat", "replay", str(path), "--check", "--model", str(smollm2_path)]
    checked = subprocess.run(words, capture_output=True, timeout=300, check=False)
    assert checked.returncode == 0, (checked.stdout, checked.stderr)
    assert checked.stdout.startswith(b"equal: ")
    finished = next(entry.said for entry in recording.entries if isinstance(entry.said, TurnFinished))
    replay = opened("replay", str(path), "--view", "tokens", columns=120, rows=40)
    replay.until("The recording ends here")
    assert f"seed {finished.seed}" in replay.text
    replay.send("hello" + ENTER)
    replay.until("A recording takes no new messages")
    assert replay.leave()[0] == 0
