"""A program in a pseudo-terminal, for the tests that look at what really reaches one."""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

ROOT = Path(__file__).resolve().parents[2]
F1, F3, F4, F6 = "\x1bOP", "\x1bOR", "\x1bOS", "\x1b[17~"
DOWN, HOME = "\x1b[B", "\x1b[H"
ESCAPE, ENTER = "\x1b", "\r"
COPY, QUIT, REGENERATE, SAVE = "\x0f", "\x11", "\x12", "\x13"
PATIENCE = 120.0
"""Seconds to wait for what has to come: the machine may be busy with other tests."""


def pasted(text: str) -> str:
    """Return what a terminal sends for a paste."""
    return f"\x1b[200~{text}\x1b[201~"


class Terminal:
    """A program in a pseudo-terminal, every byte it wrote, and the screen those bytes make."""

    def __init__(self, command: list[str], columns: int = 80, rows: int = 24, **variables: str) -> None:
        kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        environment = kept | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT)} | variables
        self._child = pexpect.spawn(command[0], command[1:], dimensions=(rows, columns), env=environment)
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.written = b""

    @property
    def text(self) -> str:
        """The screen as a terminal shows it; no-break spaces are spaces to the eye."""
        return "\n".join(line.rstrip() for line in self._screen.display).replace("\xa0", " ")

    @property
    def copied(self) -> list[str]:
        """What the program has put into the terminal's clipboard, in order."""
        found = re.findall(rb"\x1b\]52;c;([^\x07\x1b]*)[\x07\x1b]", self.written)  # whole ones
        return [base64.b64decode(data).decode() for data in found]

    def until(self, seen: str | Callable[[], object], seconds: float = PATIENCE) -> None:
        """Wait until a text is on the screen, or until something holds."""
        end = time.monotonic() + seconds
        while not (seen in self.text if isinstance(seen, str) else seen()):
            assert time.monotonic() < end, f"still not so, {seen!r}:\n{self.text}"
            assert self._read(), f"it ended without {seen!r}:\n{self.text}"

    def send(self, keys: str) -> None:
        """Press keys."""
        self._child.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size."""
        self._screen.resize(rows, columns)
        self._child.setwinsize(rows, columns)

    def kill(self, number: int) -> None:
        """Send a signal."""
        os.kill(self._child.pid, number)

    def leave(self, keys: str = QUIT) -> tuple[int | None, float]:
        """Press Ctrl+Q; return the exit status, and the seconds until the program had ended."""
        began = time.monotonic()
        self.send(keys)
        while self._read():
            assert time.monotonic() < began + PATIENCE, f"it doesn't end:\n{self.text}"
        self._child.close()
        return self._child.exitstatus, time.monotonic() - began

    def close(self) -> None:
        """End the program whatever it does."""
        self._child.close(force=True)

    @property
    def restored(self) -> bool:
        """Whether the terminal was given back: the other screen left, mouse and paste let go, the cursor shown."""
        entered = self.written.rfind(b"\x1b[?1049h")
        modes = (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1000l", b"\x1b[?2004l")
        return entered >= 0 and all(self.written.rfind(mode) > entered for mode in modes)

    def _read(self) -> bool:
        """Take what was written since; return whether more may come."""
        try:
            data = self._child.read_nonblocking(1 << 16, timeout=0.1)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.written += data
        self._stream.feed(data)
        return True
