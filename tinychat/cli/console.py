"""stdout and stderr: results on the one, everything else on the other, and nothing a terminal would obey."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import unicodedata
from typing import Any, TextIO

from tinychat.errors import TinychatError
from tinychat.pictures import one_line, pictured


class ReaderLeft(BaseException):
    """Whoever read our output has closed the pipe: there is nothing left to do, and nothing went wrong."""


def may_style(stream: TextIO) -> bool:
    """Return whether escape codes may go to `stream`: a terminal that knows them, and a person who wants them."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Results:
    """stdout. To a pipe or file text goes as it is, in UTF-8; to a terminal with its control characters as pictures."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`, by default the process's stdout."""
        self._stream = stream or sys.stdout
        self.terminal = self._stream.isatty()
        """Whether a person looks at it."""
        self.styled = may_style(self._stream)
        """Whether escape codes may be written."""

    def text(self, text: str) -> None:
        """Write foreign text, at once.

        Raises:
            ReaderLeft: The pipe was closed.
            TinychatError: It can't be written, the disk is full for one.
        """
        self.own(pictured(text) if self.terminal else text)

    def data(self, data: bytes) -> None:
        """Write bytes: to a pipe or file exactly these, to a terminal as text; raises as `text`."""
        if self.terminal:
            self.text(data.decode("utf-8", "replace"))
        else:
            self._write(data)

    def line(self, text: str = "") -> None:
        """Write a line of foreign text; raises as `text`."""
        self.text(f"{text}\n")

    def own(self, text: str) -> None:
        """Write text of our own, which may hold escape codes where `styled`; raises as `text`."""
        if self.terminal:
            encoding = self._stream.encoding or "utf-8"
            self._write(text.encode(encoding, "backslashreplace"))
        else:
            self._write(text.encode("utf-8", "surrogateescape"))

    def json(self, value: Any) -> None:
        """Write a value as one line of JSON, in ASCII so that every reader and terminal gets it whole."""
        self._write(json.dumps(value, allow_nan=False).encode("ascii") + b"\n")

    def _write(self, data: bytes) -> None:
        try:
            self._stream.flush()
            self._stream.buffer.write(data)
            self._stream.buffer.flush()
        except BrokenPipeError:
            raise ReaderLeft from None
        except OSError as error:
            raise TinychatError(f"The output can't be written: {error.strerror or error}.") from None


class Notices:
    """stderr: what a person is told beside the result. Control characters are pictures here, always."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`, by default the process's stderr."""
        self._stream = stream or sys.stderr
        self.rewrites = may_style(self._stream)
        """Whether a line may be written over by the next."""
        self._shown = 0

    def line(self, text: str) -> None:
        """Write a line."""
        self._write(f"{self._wiped()}{pictured(text)}\n")

    def status(self, text: str) -> None:
        """Write a line that the next one replaces; nothing where lines can't be replaced."""
        if self.rewrites:
            text, cells = _cut(one_line(text), _width() - 1)
            self._write(f"{self._wiped()}{text}")
            self._shown = cells

    def clear(self) -> None:
        """Take the status away."""
        if self._shown:
            self._write(self._wiped())

    def _wiped(self) -> str:
        # No escape code: a carriage return and blanks do on every terminal.
        wiped = f"\r{' ' * self._shown}\r" if self._shown else ""
        self._shown = 0
        return wiped

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody is left who could be told
            self._stream.write(text)
            self._stream.flush()


def _cut(text: str, room: int) -> tuple[str, int]:
    """Return as much of `text` as fits into `room` cells of a terminal, and how many it takes."""
    cells = 0
    for index, character in enumerate(text):
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if cells + width > room:
            return text[:index], cells
        cells += width
    return text, cells


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
