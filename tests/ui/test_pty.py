"""The screen in a real pseudo-terminal: what reaches the terminal, and how it is left."""

from __future__ import annotations

import base64
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pyte
import pytest

pytestmark = pytest.mark.pty

PROGRAM = str(Path(__file__).with_name("pty_screen.py"))


class Terminal:
    """A program in a pseudo-terminal, every byte it wrote, and the screen those bytes make."""

    def __init__(self, kind: str, columns: int = 80, rows: int = 24) -> None:
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": ""}
        environment.pop("NO_COLOR", None)
        self.log = io.BytesIO()
        self._child = pexpect.spawn(
            sys.executable, [PROGRAM, kind], dimensions=(rows, columns), env=environment, timeout=20
        )
        self._child.logfile_read = self.log
        self._screen = pyte.Screen(columns, rows)

    @property
    def text(self) -> str:
        """The screen as a terminal shows it."""
        self._screen.reset()
        pyte.ByteStream(self._screen).feed(self.log.getvalue())
        return "\n".join(self._screen.display)

    def until(self, text: str) -> None:
        """Wait until a text is on the screen."""
        end = time.monotonic() + 20
        while text not in self.text:
            assert time.monotonic() < end, self.text
            self._child.expect([pexpect.TIMEOUT, pexpect.EOF], timeout=0.1)

    def send(self, keys: str) -> None:
        """Type."""
        self._child.send(keys)

    def leave(self, keys: str = "\x11") -> tuple[int | None, float]:
        """Press Ctrl+Q; return the exit status and the seconds it took."""
        began = time.monotonic()
        if keys:
            self.send(keys)
        self._child.expect(pexpect.EOF)
        if self._child.isalive():
            self._child.wait()
        return self._child.exitstatus, time.monotonic() - began

    def kill(self, number: int) -> None:
        """Send a signal."""
        os.kill(self._child.pid, number)

    def close(self) -> None:
        """End the program whatever it does."""
        self._child.close(force=True)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_no_escape_sequence_of_a_model_reaches_the_terminal(terminals: list[Terminal]) -> None:
    """Would catch: one widget whose text goes around the pictures: clipboard, title, cleared screen."""
    terminal = Terminal("answer", 160, 48)
    terminals.append(terminal)
    terminal.until("Enter send")
    terminal.send("\x1b[200~A\x1b]52;c;aGk=\x07\x9b31m\x1b[201~")  # pasted, in brackets as terminals do
    terminal.send("hello\r")
    terminal.until("first token 41 ms")
    terminal.send("\x1bOP")  # F1
    terminal.until("Esc closes")
    terminal.leave()
    written = terminal.log.getvalue()
    for payload in (b"\x1b]52;c;aGk=", b"\x1b[2JC", b"\xc2\x9b", b"\x9b31m", b"\x1b]0;", "\u202e".encode()):
        assert payload not in written, payload
    assert "␛]52;c;aGk=".encode() in written


def test_copy_reaches_the_terminals_clipboard(terminals: list[Terminal]) -> None:
    """Would catch: a copy that stays inside the program, or a reply that ends the sequence early."""
    terminal = Terminal("answer", 120, 40)
    terminals.append(terminal)
    terminal.until("Enter send")
    terminal.send("hello\r")
    terminal.until("first token 41 ms")
    terminal.send("\x0f")  # Ctrl+O
    terminal.until("characters to the terminal")
    nasty = "A\x1b]52;c;aGk=\x1b\\B\x1b[2JC\x9b31mD\x1b]0;title\x07E\u202eF"
    assert b"\x1b]52;c;" + base64.b64encode(nasty.encode()) + b"\x07" in terminal.log.getvalue()


@pytest.mark.parametrize(
    ("kind", "shows"), [("load", "loading"), ("hang", "prefill"), ("talk", "word word"), ("answer", "first token")]
)
def test_leaving_takes_no_time_and_restores_the_terminal(terminals: list[Terminal], kind: str, shows: str) -> None:
    """Would catch: a quit that waits for the engine, a status that lies, a terminal left in the other screen."""
    terminal = Terminal(kind)
    terminals.append(terminal)
    terminal.until("Enter send")
    if kind != "load":
        terminal.until("tokens 0")
        terminal.send("hello\r")
    terminal.until(shows)
    status, seconds = terminal.leave()
    assert status == 0
    assert seconds < 1
    written = terminal.log.getvalue()
    for restored in (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1000l", b"\x1b[?2004l"):
        assert written.rindex(restored) > written.rindex(b"\x1b[?1049h")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_being_ended_from_outside_restores_the_terminal(
    terminals: list[Terminal], number: signal.Signals, status: int
) -> None:
    """Would catch: a shell full of mouse reports after a plain kill."""
    terminal = Terminal("talk")
    terminals.append(terminal)
    terminal.until("tokens 0")
    terminal.kill(number)
    assert terminal.leave("")[0] == status
    assert b"\x1b[?1049l" in terminal.log.getvalue()
    assert b"\x1b[?1000l" in terminal.log.getvalue()
