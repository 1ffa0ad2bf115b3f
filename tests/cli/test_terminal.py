"""The program in a pseudo-terminal, with the real engine: what a person sees, presses and is left with."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest
from ended_command import heed_signals

pytestmark = pytest.mark.pty

COLUMNS, ROWS = 120, 40
NASTY = "A\x1b]52;c;aGk=\x07\x1b[2JB\x9b31mC"
QUICK = 1.5
"""Seconds within which a command that is stopped has ended, also on a machine that is busy with other tests."""


class Terminal:
    """A command in a terminal."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self.child = pexpect.spawn(
            command[0], command[1:], env=environment, cwd=str(folder), dimensions=(ROWS, COLUMNS), timeout=60,
            preexec_fn=heed_signals,
        )  # fmt: skip
        self.raw = b""
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def read(self) -> bool:
        """Take what was written since; return whether more may come."""
        try:
            data = self.child.read_nonblocking(1 << 16, timeout=0.05)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        return True

    def wait_for(self, seen: str, timeout: float = 60) -> None:
        """Wait until `seen` is on the screen."""
        deadline = time.monotonic() + timeout
        while seen not in self.text:
            assert self.read(), f"it ended without {seen!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {seen!r}:\n{self.text}"

    def ended(self, timeout: float = 60) -> int:
        """Wait for the end; return the exit status."""
        deadline = time.monotonic() + timeout
        while self.read():
            assert time.monotonic() < deadline, f"it doesn't end:\n{self.text}"
        self.child.close()
        return int(self.child.exitstatus) if self.child.exitstatus is not None else -int(self.child.signalstatus)


Open = Callable[..., Terminal]


def obeyed(raw: bytes) -> bool:
    """Whether bytes hold an escape sequence that a terminal would obey."""
    return bool({"\x1b", "\x9b"} & set(raw.decode()))


@pytest.fixture
def terminal(environment: dict[str, str], tmp_path: Path) -> Iterator[Open]:
    """Run tinychat, or a shell line of it (`$T` is tinychat), in a terminal."""
    opened: list[Terminal] = []
    tinychat = [sys.executable, "-m", "tinychat"]

    def start(*words: str, shell: str = "", **variables: str) -> Terminal:
        command = ["/bin/sh", "-c", shell] if shell else [*tinychat, *words]
        opened.append(Terminal(command, environment | {"T": " ".join(tinychat)} | variables, tmp_path))
        return opened[-1]

    yield start
    for each in opened:
        each.child.close(force=True)


def test_one_reply_in_a_terminal(terminal: Open, gpt2_folder: Path) -> None:
    """Would catch: escape codes or the rest of a progress line beside a reply."""
    one = terminal("run", str(gpt2_folder), "Hello", "-t", "0", "-n", "5", "--raw")
    assert one.ended() == 0
    assert not obeyed(one.raw)
    lines = [line for line in one.text.splitlines() if line]
    assert lines
    assert not any("reading weights" in line or "[#" in line for line in lines)


def test_interrupted_by_the_keyboard(terminal: Open, talkative: str) -> None:
    """Would catch: Ctrl-C that leaves the shell's prompt in the middle of a line, or takes the text away."""
    one = terminal("run", talkative, "Hello", "-t", "0", "-n", "50000", "--raw")
    while (last := one.raw.rpartition(b"\r")[2].strip()) == b"" or last.startswith(b"repo ["):
        assert one.read()
    began = time.monotonic()
    one.child.sendintr()
    assert one.ended() == 130
    assert time.monotonic() - began < QUICK
    assert one.raw.endswith(b"\n")
    assert b"Traceback" not in one.raw


def test_output_that_is_no_terminal(terminal: Open, gpt2_folder: Path, tmp_path: Path) -> None:
    """Would catch: escape codes, spinners or progress in a file; a chat opened where nobody sees it."""
    one = terminal(shell=f'echo hi | $T run "{gpt2_folder}" -t 0 -n 5 > out')
    assert one.ended() == 0
    assert not obeyed(one.raw)
    out = (tmp_path / "out").read_bytes()
    assert out.endswith(b"\n")
    assert not obeyed(out)
    assert b"\r" not in out
    one = terminal(shell=f'$T run "{gpt2_folder}" | cat')
    one.ended()
    assert "There is no prompt, and without a terminal on both sides no chat." in one.text


def test_head(terminal: Open, talkative: str) -> None:
    """Would catch: `| head -1` with an error at its end."""
    one = terminal(shell=f'($T run "{talkative}" Hello -t 0 -n 50000 --json; echo "status $?" >&2) | head -1')
    assert one.ended() == 0
    assert "status 0" in one.text
    assert "Broken" not in one.text
    assert "Traceback" not in one.text


def test_foreign_text_is_drawn_as_pictures(terminal: Open, vocabulary_folder: str, tmp_path: Path) -> None:
    """Would catch: text that writes the clipboard of whoever looks at it; the same text changed in a file."""
    (tmp_path / "messages.json").write_text(json.dumps([{"role": "user", "content": NASTY}]))
    one = terminal("prompt", vocabulary_folder, "--messages", "messages.json")
    assert one.ended() == 0
    assert not obeyed(one.raw)
    assert "User: A␛]52;c;aGk=␇␛[2JB<U+009B>31mC" in one.text
    terminal(shell=f'$T prompt "{vocabulary_folder}" --messages messages.json > out').ended()
    assert NASTY.encode() in (tmp_path / "out").read_bytes()


def test_colours_tell_pieces_apart_where_they_are_wanted(terminal: Open, vocabulary_folder: str) -> None:
    """Would catch: colour in spite of NO_COLOR or TERM=dumb, no colour otherwise, pieces told apart by colour alone."""
    colourful = terminal("tokenize", vocabulary_folder, "one two")
    assert colourful.ended() == 0
    assert b"\x1b[" in colourful.raw
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = terminal("tokenize", vocabulary_folder, "one two", **variables)
        assert plain.ended() == 0
        assert not obeyed(plain.raw)
        assert "one|␣two" in plain.text


def test_decoded_bytes_end_with_a_line(terminal: Open, vocabulary_folder: str) -> None:
    """Would catch: a shell's prompt behind the last word."""
    one = terminal("tokenize", vocabulary_folder, "[31373]", "--decode")
    assert one.ended() == 0
    assert one.raw == b"hello\r\n"


def restored(raw: bytes) -> bool:
    """Whether the terminal was given back: the other screen left, the mouse let go, the cursor shown."""
    return (
        raw.rfind(b"\x1b[?1049l") > raw.rfind(b"\x1b[?1049h") >= 0
        and raw.rfind(b"\x1b[?1000l") >= raw.rfind(b"\x1b[?1000h")
        and raw.rfind(b"\x1b[?25h") > raw.rfind(b"\x1b[?25l")
    )


def test_the_chat_opens_talks_and_closes(terminal: Open, gpt2_folder: Path) -> None:
    """Would catch: anything between `tinychat run` and a reply on the screen, and on the way out."""
    chat = terminal("run", str(gpt2_folder), "-t", "0", "-n", "8")
    chat.wait_for("GPT-2")
    chat.child.send("Hello\r")
    chat.wait_for("8 tokens")
    began = time.monotonic()
    chat.child.sendcontrol("q")
    assert chat.ended() == 0
    assert time.monotonic() - began < QUICK
    assert restored(chat.raw)


def test_flags_of_the_screen(terminal: Open, gpt2_folder: Path) -> None:
    """Would catch: --no-mouse, --system or --theme ignored."""
    quiet = terminal("run", str(gpt2_folder), "--no-mouse", "--theme", "no such", "--system", "Be brief.")
    quiet.wait_for("There is no theme 'no such'")
    quiet.wait_for("Be brief.")
    quiet.child.sendcontrol("q")
    assert quiet.ended() == 0
    assert b"\x1b[?1000h" not in quiet.raw
    assert restored(quiet.raw)


@pytest.mark.parametrize(
    ("moment", "leave", "status"),
    [
        ("load", "ctrl+q", 0),
        ("decode", "ctrl+q", 0),
        ("load", signal.SIGTERM, 143),
        ("decode", signal.SIGTERM, 143),
        ("decode", signal.SIGHUP, 129),
    ],
)
def test_leaving_the_chat(terminal: Open, talkative: str, moment: str, leave: Any, status: int) -> None:
    """Would catch: a wait for the engine, an abort by a thread inside torch (134), a terminal left in disorder."""
    chat = terminal("run", talkative, "-t", "0", "-n", "50000", "--raw")
    chat.wait_for("Enter send")
    if moment == "decode":
        chat.wait_for("GPT-2")
        chat.child.send("Hello\r")
        chat.wait_for("answering")
    began = time.monotonic()
    if leave == "ctrl+q":
        chat.child.sendcontrol("q")
    else:
        os.kill(chat.child.pid, leave)
    assert chat.ended() == status
    assert time.monotonic() - began < QUICK
    assert restored(chat.raw)


@pytest.mark.model
def test_the_real_model_in_the_chat(terminal: Open, smollm2_path: Path) -> None:
    """Would catch: a chat that works with everything but a real model."""
    chat = terminal("run", str(smollm2_path), "-t", "0")
    chat.wait_for("Llama")
    chat.child.send("What is the capital of France?\r")
    chat.wait_for("Paris.")
    chat.child.sendcontrol("q")
    assert chat.ended() == 0
    assert restored(chat.raw)
