"""Tokens that no screen expects, and an engine all of whose answers are made of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from nasty import NASTY
from scripted_engine import ScriptedEngine

from tinychat.protocol import Event

TEXTS: Final = [
    *NASTY, "[bold]", "[/bold", "\x1b[31m", "\x1b]8;;file:///x\x07", "\t", "\n", "\r\n", "\x00", "\u2028",
    "\u202d", "\u2069", "\u200d", "\u200b", "\ufe0f", "👩\u200d👩\u200d👧", "🇩🇪", "🇩", "❤\ufe0f", "e\u0301", "\u0301",
    "a" + "\u0300" * 40, "日本語", "ﷺ", "שלום", "กำ", "\u3000", "\ufeff", "x" * 500, "日" * 500, "a b " * 125, "",
]  # fmt: skip
LONE: Final = [b"\xf0\x9f", b"\xff", b"\x80a", b"\xe6" * 90]
PIECES: Final = [*(text.encode("utf-8", "surrogatepass") for text in TEXTS), *LONE]


class HostileEngine(ScriptedEngine):
    """Every piece of a token that it tells of, in whatever it is asked, is the next of `PIECES`."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces = itertools.cycle(PIECES)

    def emit(self, *events: Event) -> None:
        super().emit(*(_with_pieces(event, self._pieces) for event in events))


def _with_pieces(value: Any, pieces: Iterator[bytes]) -> Any:
    """Return a value with all bytes in it replaced, however deep they lie."""
    if isinstance(value, bytes):
        return next(pieces)
    if isinstance(value, tuple):
        return tuple(_with_pieces(each, pieces) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return replace(value, **{name: _with_pieces(getattr(value, name), pieces) for name in names})
    return value
