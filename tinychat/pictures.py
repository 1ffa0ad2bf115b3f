"""Text that is not ours, made safe to draw.

Model output, typed and piped text, file names, metadata and error texts can hold characters that a terminal obeys
(escape sequences write the clipboard, clear the screen, set the title) or that turn neighbouring text around (bidi
overrides). They are drawn as pictures; the data they come from stays raw.
"""

from __future__ import annotations

import unicodedata
from typing import Final


def _pictures() -> dict[int, str]:
    """Map each character that must not reach a terminal to what is drawn for it."""
    pictures = {code: chr(0x2400 + code) for code in range(0x20)}
    del pictures[ord("\n")], pictures[ord("\t")]
    pictures[0x7F] = "␡"
    named = [
        *range(0x80, 0xA0),  # C1: 0x9B alone begins an escape sequence on some terminals
        *range(0x202A, 0x202F),  # bidi embeddings and overrides
        *range(0x2066, 0x206A),  # bidi isolates
        0x2028, 0x2029,  # line and paragraph separator: a second kind of newline
        *range(0xFFF9, 0xFFFC),  # interlinear annotation
        *range(0xD800, 0xE000),  # lone surrogates: no terminal's encoding holds them
        *range(0xE0000, 0xE0080),  # tags: text nobody sees
    ]  # fmt: skip
    return pictures | {code: f"<U+{code:04X}>" for code in named}


PICTURES: Final = _pictures()
"""Code of each dangerous character to its picture; newline and tab are not among them."""


def pictured(text: str) -> str:
    """Return `text` as it may be drawn: dangerous characters as pictures, newlines and tabs as they are."""
    return text.translate(PICTURES)


def one_line(text: str) -> str:
    """Return `text` as it may be drawn where there is one line for it: newlines and tabs are pictures too."""
    return text.translate(_ONE_LINE)


_ONE_LINE: Final = PICTURES | {ord("\n"): "␊", ord("\t"): "␉"}


def visible(text: str) -> str:
    """Return `text` on one line with everything that has no ink made visible, as pieces of a text are shown."""
    return "".join(_VISIBLE.get(character) or _with_ink(character) for character in text)


def visible_bytes(data: bytes) -> str:
    """Return bytes as visible text; those that are no UTF-8 in hexadecimal: b"\\xf0\\x9f" -> "<F0 9F>"."""
    try:
        return visible(data.decode())
    except UnicodeDecodeError:
        return f"<{data.hex(' ').upper()}>"


_VISIBLE: Final = {" ": "␣", "\n": "↵", "\t": "⇥"}


def _with_ink(character: str) -> str:
    code = ord(character)
    if code in PICTURES:
        return PICTURES[code]
    category = unicodedata.category(character)
    invisible = category in ("Cf", "Zs", "Zl", "Zp", "Cn", "Co") or 0xFE00 <= code <= 0xFE0F
    if invisible or code in _BLANK:
        return f"<U+{code:04X}>"
    # A combining mark is given its own letter to stand on: alone it would merge with what is drawn before it.
    return f"◌{character}" if category in ("Mn", "Me") else character


_BLANK: Final = frozenset({0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0})
"""Letters and marks whose glyph is empty."""
