"""Text for a model from words and pipes: Unicode, with line ends that models know."""

from __future__ import annotations

import sys
import threading
from typing import Final

from tinychat.cli.console import Notices
from tinychat.errors import TinychatError, UsageError

_PATIENCE: Final = 3.0
"""Seconds after which a person is told that stdin is still open."""


def piped_text() -> str:
    """Return the text of stdin, "" where that is a terminal. The last line's end is left out, as shells do in `$()`.

    Raises:
        TinychatError: It is no UTF-8; the sentence has the place.
    """
    if sys.stdin.isatty():
        return ""
    return with_line_feeds(decoded(piped_bytes(), "stdin")).removesuffix("\n")


def piped_bytes() -> bytes:
    """Return the bytes of stdin; where its end is long in coming, say what is waited for.

    Raises:
        TinychatError: They can't be read.
    """
    remark = threading.Timer(_PATIENCE, lambda: Notices().line("note: reading stdin to its end before answering."))
    remark.daemon = True
    remark.start()
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise TinychatError(f"stdin can't be read: {error.strerror or error}.") from None
    finally:
        remark.cancel()


def decoded(data: bytes, place: str) -> str:
    """Return UTF-8 as text, a byte order mark before it left out.

    Raises:
        TinychatError: It is no UTF-8.
    """
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise TinychatError(
            f"{place} is not UTF-8: byte {error.start:,} is 0x{data[error.start]:02X}.",
            "Convert it to UTF-8 first, with iconv for one.",
        ) from None


def arguments_text(name: str, text: str) -> str:
    """Return the text of an argument.

    Raises:
        UsageError: It is no UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} is not UTF-8.") from None
    return with_line_feeds(text)


def with_line_feeds(text: str) -> str:
    """Return `text` with the line ends of Windows and of old Macs as LF, which models were trained on."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
