"""The screen in a real pseudo-terminal: what reaches the terminal, and how it is left."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nasty import NASTY, OBEYED
from terminal import COPY, ENTER, ESCAPE, F1, F4, SAVE, Terminal, pasted

pytestmark = pytest.mark.pty

PROGRAM = str(Path(__file__).with_name("pty_screen.py"))
Open = Callable[..., Terminal]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open the screen on an engine that behaves as told, see pty_screen.py."""
    terminals: list[Terminal] = []

    def start(kind: str, columns: int = 80, rows: int = 24) -> Terminal:
        terminals.append(Terminal([sys.executable, PROGRAM, kind], columns, rows))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def test_nothing_that_a_terminal_obeys_reaches_it(opened: Open) -> None:
    """Would catch: one widget whose text goes around the pictures: clipboard, title, cleared screen."""
    terminal = opened("answer", 160, 48)
    terminal.until("Enter send")
    # At once: where a paste comes in two reads and the machine is busy between them, Textual gives up on an escape code
    # in it and takes the rest for keys.
    terminal.send("".join(map(pasted, NASTY)))
    terminal.until("tokens ")
    terminal.send(ENTER)
    terminal.until("first token 41 ms")
    terminal.send("\x14")  # Ctrl+T unfolds the thinking
    terminal.until("▾ thought")
    terminal.send("\x1b[15~")  # F5: raw
    terminal.until("Raw: exactly what was said")
    terminal.send("\x1b[1;5A")  # Ctrl+Up: back to what is above
    terminal.send(F4)
    terminal.until("Ctrl+S saves")
    terminal.send(pasted("".join(NASTY)) + SAVE)
    terminal.until("holds from the next message on")
    terminal.send(F1)
    terminal.until("Esc closes")
    terminal.send(ESCAPE)
    terminal.resize(80, 24)
    terminal.until(lambda: "Ctrl+Q quit" in terminal.text and "F2 panel" not in terminal.text)
    assert terminal.leave()[0] == 0
    for payload in OBEYED:
        assert payload not in terminal.written, payload
    assert "␛]52;c;aGk=".encode() in terminal.written


def test_a_terminal_made_tiny_and_large_again_is_painted_anew(opened: Open) -> None:
    """Would catch: a resize that is over before the program looks, and leaves holes in what the terminal shows."""
    terminal = opened("hang")
    terminal.until("tokens 0")
    terminal.until("Enter send")
    before = terminal.text
    for _ in range(3):
        terminal.resize(20, 5)
        terminal.resize(80, 24)
        terminal.until(lambda: terminal.text == before)


def test_copy_reaches_the_terminals_clipboard(opened: Open) -> None:
    """Would catch: a copy that stays inside the program, or a reply that ends the sequence early."""
    terminal = opened("answer", 120, 40)
    terminal.until("Enter send")
    terminal.send("hello" + ENTER)
    terminal.until("first token 41 ms")
    terminal.send(COPY)
    terminal.until(lambda: terminal.copied)
    assert terminal.copied == ["   ".join(reversed(NASTY))]


@pytest.mark.parametrize(
    ("kind", "shows"), [("load", "loading"), ("hang", "prefill"), ("talk", "word word"), ("answer", "first token")]
)
def test_leaving_takes_no_time_and_restores_the_terminal(opened: Open, kind: str, shows: str) -> None:
    """Would catch: a quit that waits for the engine, a status that lies, a terminal left in the other screen."""
    terminal = opened(kind)
    terminal.until("Enter send")
    if kind != "load":
        terminal.until("tokens 0")
        terminal.send("hello" + ENTER)
    terminal.until(shows)
    status, seconds = terminal.leave()
    assert status == 0
    assert seconds < 2, "under one on a quiet machine"
    assert terminal.restored


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_being_ended_from_outside_restores_the_terminal(opened: Open, number: signal.Signals, status: int) -> None:
    """Would catch: a shell full of mouse reports after a plain kill."""
    terminal = opened("talk")
    terminal.until("tokens 0")
    terminal.kill(number)
    assert terminal.leave("")[0] == status
    assert terminal.restored
