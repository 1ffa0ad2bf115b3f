"""Strings that broke other programs: markup that was parsed, and characters that a terminal obeys."""

from __future__ import annotations

MARKUP = [
    "[/INST]", "[/]", "[link=file:///x]y[/link]", "[bold]hi[/bold]", "[red]", "arr[i]=1", "[INST] hi [/INST]",
    "[on red]x", "[$primary]x", "[@click=app.quit]x[/]", "\\[x]", "[[a]]", "[", "]", "[b", "$x {y} %s",
]  # fmt: skip
CONTROL = [
    "A\x1b]52;c;aGk=\x1b\\B\x1b[2JC\x9b31mD", "\x1b]0;title\x07", "a\x08\x0b\x0c\x7fz", "x\u202eevil\u2066y", "\r\x00",
]  # fmt: skip
NASTY = MARKUP + CONTROL

OBEYED = [
    b"\x1b]52;c;aGk=", b"\x1b[2JC", b"\xc2\x9b", b"\x9b31m", b"\x1b]0;", b"\x08", b"\x0b", b"\x0c", b"\x7f", b"\x00",
    "\u202e".encode(), "\u2066".encode(),
]  # fmt: skip
"""Bytes of them that must not reach a terminal, and that no screen of ours has a use for."""
