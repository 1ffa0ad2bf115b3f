"""Chats that are kept, in a pseudo-terminal: killed in the middle, and gone on with, also with the real smollm2."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminal import ENTER, ESCAPE, ROOT, Terminal

from tinychat.chats import Tree
from tinychat.chats.store import Store

pytestmark = pytest.mark.pty

PROGRAM = str(Path(__file__).with_name("pty_screen.py"))

Open = Callable[..., Terminal]


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Folders of the test's own."""
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_DATA_HOME": str(tmp_path / "data")}


@pytest.fixture
def opened(variables: dict[str, str]) -> Iterator[Open]:
    """Run the chat, and wait until it can be talked to."""
    terminals: list[Terminal] = []

    def start(*words: str) -> Terminal:
        terminal = Terminal([sys.executable, "-m", "tinychat", "run", *words, "-t", "0"], 120, 40, **variables)
        terminals.append(terminal)
        terminal.until("Context 8,192")
        return terminal

    yield start
    for terminal in terminals:
        terminal.close()


def listed(variables: dict[str, str], *words: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "tinychat", "sessions", *words, "--json"]
    done = subprocess.run(
        command, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)} | variables, check=True
    )
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def test_what_was_on_the_screen_half_a_second_ago_is_in_the_file(tmp_path: Path) -> None:
    """Would catch: a screen that hands its words to the writer too late, at any of ten moments of a kill."""
    path = tmp_path / "chats.db"
    for seed in range(10):
        terminal = Terminal([sys.executable, PROGRAM, "talk", str(path)], 100, 30)
        try:
            terminal.until("tokens 0")
            terminal.send(f"question {seed}" + ENTER)
            terminal.until("answering")
            seen: list[tuple[float, int]] = []
            end = time.monotonic() + 0.6 + random.Random(seed).random()
            while time.monotonic() < end:
                assert terminal._read()
                if found := re.search(r"answering · ([\d,]+) tokens", terminal.text):
                    seen.append((time.monotonic(), int(found[1].replace(",", ""))))
            killed = time.monotonic()
            terminal.kill(signal.SIGKILL)
        finally:
            terminal.close()
        with Store(path) as store:
            saved = store.read(store.latest() or 0)
            assert store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        question, reply = saved.session.tree.turns
        assert question.text == f"question {seed}"
        shown = max((count for at, count in seen if at <= killed - 0.5), default=0)
        assert len(reply.text.split()) >= shown
        assert Tree.restored(saved.session.tree).path()[-1].reason == "cut"


@pytest.mark.model
def test_a_chat_that_was_killed_is_gone_on_with(opened: Open, smollm2_path: Path, variables: dict[str, str]) -> None:
    """Would catch: words lost with the process, a chat that `--resume` doesn't find, a reply that can't be continued,
    Alt keys that a real terminal's bytes don't make."""
    terminal = opened(str(smollm2_path))
    terminal.send("Write a long story about a fox." + ENTER)
    terminal.until("answering")
    path = Path(variables["XDG_DATA_HOME"]) / "tinychat" / "chats.db"

    def saved() -> str:
        if not path.exists():
            return ""
        with Store(path) as store:
            latest = store.latest()
            return store.read(latest).session.tree.turns[-1].text if latest else ""

    terminal.until(lambda: len(saved().split()) > 5)
    terminal.kill(signal.SIGKILL)
    said = saved()
    assert [(each["title"], each["turns"]) for each in listed(variables, "list")] == [
        ("Write a long story about a fox.", 2)
    ]
    assert listed(variables, "search", said.split()[0])[0]["role"] == "assistant"

    terminal = opened("--resume")
    terminal.until("Going on with “Write a long story about a fox.”")
    terminal.until("tinychat ended while this was being said.")
    assert said[:20] in terminal.text
    terminal.send("\x1bc")  # Alt+C
    terminal.until("answering")
    terminal.send(ESCAPE)
    terminal.until("Stopped by you.")
    terminal.until("version 2 of 2")
    terminal.send("\x1be")  # Alt+E
    terminal.until("EDITING your question")
    terminal.send(" Be brief." + ENTER)
    terminal.until("version 3 of 3")
    terminal.until(lambda: "Stopped by you." not in terminal.text)  # of version 2: a screen comes in pieces
    terminal.send(ESCAPE)
    terminal.until("Stopped by you.")
    terminal.send("\x1bu")  # Alt+U
    terminal.until("Undone")
    terminal.until("version 2 of")  # of two, where the third was stopped before its first token
    assert terminal.leave()[0] == 0
    with Store(path) as store:
        tree = store.read(store.latest() or 0).session.tree
    assert len(tree.turns) == 5
    assert tree.turns[2].text.startswith(said)
    assert tree.turns[3].text == "Write a long story about a fox. Be brief."
    assert tree.head == 2


@pytest.mark.model
def test_a_private_chat_leaves_nothing(opened: Open, smollm2_path: Path, variables: dict[str, str]) -> None:
    """Would catch: a word of a private chat on the disk."""
    terminal = opened(str(smollm2_path), "--private")
    terminal.send("My secret is tangerine." + ENTER)
    terminal.until("first token")
    assert terminal.leave()[0] == 0
    data = Path(variables["XDG_DATA_HOME"])
    assert not [file for file in data.rglob("*") if file.is_file() and b"tangerine" in file.read_bytes()]
    assert not (data / "tinychat" / "chats.db").exists()
