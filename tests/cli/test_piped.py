"""Text from words and pipes."""

from __future__ import annotations

import io
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinychat.cli import piped
from tinychat.cli.console import Notices
from tinychat.errors import TinychatError, UsageError


@given(st.text())
def test_only_line_ends_change(text: str) -> None:
    """Would catch: characters lost or changed on the way to the model."""
    changed = piped.with_line_feeds(text)
    assert "\r" not in changed
    assert changed == "\n".join(text.replace("\r\n", "\n").split("\r"))
    if "\r" not in text:
        assert changed == text


@given(st.sampled_from([b"", b"\xef\xbb\xbf"]), st.text(), st.binary())
def test_bytes_are_text_or_refused(mark: bytes, text: str, rest: bytes) -> None:
    """Would catch: bytes replaced in silence; a place in the sentence that isn't the fault's."""
    data = mark + text.encode() + rest
    try:
        data.decode()
    except UnicodeDecodeError as fault:
        with pytest.raises(TinychatError, match=f"byte {fault.start:,} is 0x{data[fault.start]:02X}"):
            piped.decoded(data, "stdin")
    else:
        assert piped.decoded(data, "stdin").encode() == data.removeprefix(b"\xef\xbb\xbf")


def test_one_line_end_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: `echo hi |` that says "hi" and an empty line; more than one line end taken away."""
    for data, text in ((b"hi\n", "hi"), (b"hi\r\n", "hi"), (b"hi\n\n", "hi\n"), (b"hi", "hi"), (b"\n", "")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert piped.piped_text() == text


def test_arguments_that_are_no_text() -> None:
    """Would catch: bytes of an argument that become U+FFFD in silence."""
    assert piped.arguments_text("PROMPT", "é\r\n日") == "é\n日"
    with pytest.raises(UsageError, match="PROMPT is not UTF-8"):
        piped.arguments_text("PROMPT", "\udcff")


def test_a_pipe_that_stays_open_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: a command that hangs without a word because whoever started it left its stdin open."""
    said: list[str] = []
    told = threading.Event()

    class Open(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert told.wait(10)
            return super().read(size)

    def line(_: Notices, text: str) -> None:
        said.append(text)
        told.set()

    monkeypatch.setattr(Notices, "line", line)
    monkeypatch.setattr(piped, "_PATIENCE", 0.01)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Open(b"hi")))
    assert piped.piped_text() == "hi"
    assert said == ["note: reading stdin to its end before answering."]
