"""stdout and stderr: exact to a pipe, harmless to a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
from collections.abc import Iterator
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinychat.cli.console import Notices, ReaderLeft, Results, may_style
from tinychat.errors import TinychatError

NASTY = "A\x1b]52;c;aGk=\x07\x1b[2JB\x9b31m\u202eevil\r\x00\x7f\tC"
PICTURED = "A␛]52;c;aGk=␇␛[2JB<U+009B>31m<U+202E>evil␍␀␡\tC"


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def written(self) -> bytes:
        self.flush()
        return self.buffer.getvalue()  # type: ignore[attr-defined, no-any-return]


class Pipe(Terminal):
    def isatty(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def a_common_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_pipe_gets_exact_text() -> None:
    """Would catch: control characters of a reply changed on their way into a file."""
    stream = Pipe("latin-1")
    Results(stream).line(NASTY + "é日")
    assert stream.written == (NASTY + "é日\n").encode()


def test_a_terminal_gets_pictures() -> None:
    """Would catch: model text that writes the clipboard of whoever watches it."""
    stream = Terminal()
    Results(stream).line(NASTY)
    assert stream.written.decode() == PICTURED + "\n"


def test_a_terminal_that_lacks_a_character() -> None:
    """Would catch: a crash in the middle of a reply, on a terminal that knows Latin-1 alone."""
    stream = Terminal("latin-1")
    Results(stream).line("é日")
    assert stream.written == b"\xe9\\u65e5\n"


@given(st.binary())
def test_bytes_reach_a_pipe_as_they_are(data: bytes) -> None:
    """Would catch: bytes decoded and encoded again, which loses those that are no UTF-8."""
    stream = Pipe()
    Results(stream).data(data)
    assert stream.written == data


@given(st.recursive(st.none() | st.text() | st.integers(), st.lists))
def test_json_is_ascii(value: object) -> None:
    """Would catch: escape codes inside JSON on a terminal; JSON that a reader in another encoding can't take."""
    stream = Terminal()
    Results(stream).json(value)
    assert all(0x20 <= byte < 0x7F for byte in stream.written[:-1])
    assert json.loads(stream.written) == value


def test_json_refuses_what_is_no_json() -> None:
    """Would catch: NaN written where only some readers understand it."""
    with pytest.raises(ValueError, match="Out of range float"):
        Results(Pipe()).json(float("nan"))


@pytest.mark.parametrize(
    ("variable", "value", "styled"),
    [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False), ("TERM", "xterm", True)],
)
def test_who_wants_no_style_gets_none(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, styled: bool) -> None:
    """Would catch: colours in spite of NO_COLOR (https://no-color.org: set and not empty) or on a dumb terminal."""
    monkeypatch.setenv(variable, value)
    assert may_style(Terminal()) is styled
    assert not may_style(Pipe())


def test_a_status_is_written_over_and_taken_away() -> None:
    """Would catch: the rest of a longer line left standing, or an escape code to erase it."""
    stream = Terminal()
    notices = Notices(stream)
    notices.status("downloading\n99 %")
    notices.status("done")
    notices.clear()
    notices.clear()
    assert stream.written.decode() == "downloading␊99 %\r" + " " * 16 + "\rdone\r    \r"


def test_a_status_fits_its_line() -> None:
    """Would catch: a status that wraps, so that going back to the line's start no longer erases it."""
    stream = Terminal()
    notices = Notices(stream)
    notices.status("日" * 100)
    assert stream.written.decode() == "日" * 39


def test_no_status_where_lines_stay() -> None:
    """Would catch: a log file full of progress."""
    stream = Pipe()
    notices = Notices(stream)
    notices.status("99 %")
    notices.clear()
    assert stream.written == b""
    notices.line(NASTY)
    assert stream.written.decode() == PICTURED + "\n"


@pytest.fixture
def closed_pipe() -> Iterator[TextIO]:
    """A pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", encoding="utf-8")
    yield stream
    close(stream)


def close(stream: TextIO) -> None:
    """Close a stream that couldn't be written: what it still holds goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    stream.close()


def test_a_reader_that_left(closed_pipe: TextIO) -> None:
    """Would catch: `| head -1` that ends in a traceback."""
    with pytest.raises(ReaderLeft):
        Results(closed_pipe).line("hello")


def test_nobody_to_tell(closed_pipe: TextIO) -> None:
    """Would catch: a notice that can't be written ending the command whose result could."""
    Notices(closed_pipe).line("hello")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")  # noqa: PTH110
def test_a_full_disk() -> None:
    """Would catch: output lost without a word."""
    stream = open("/dev/full", "w", encoding="utf-8")  # noqa: PTH123, SIM115
    with pytest.raises(TinychatError, match="The output can't be written: No space left on device"):
        Results(stream).line("hello")
    close(stream)


def test_a_real_terminal_is_one() -> None:
    """Would catch: a check that no terminal passes, which would make every other test here pointless."""
    main, other = pty.openpty()
    with open(other, "w", encoding="utf-8") as stream:  # noqa: PTH123
        assert Results(stream).styled
        assert Notices(stream).rewrites
    os.close(main)
