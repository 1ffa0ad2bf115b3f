"""From a token as the vocabulary spells it to the bytes it stands for.

Byte-level BPE (GPT-2) spells each byte as one printable character; SentencePiece spells a space as "▁" and bytes that
have no other token as "<0xHH>".
"""

from __future__ import annotations

import re
from typing import Final

SPACE_MARK: Final = "▁"
"""How SentencePiece spells a space (U+2581)."""

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's character for each byte: the printable bytes of Latin-1 stand for themselves, the rest, in order,
    for the characters from U+0100 on (https://github.com/openai/gpt-2/blob/master/src/encoder.py)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_OF: Final = _byte_alphabet()
"""The byte that each character of a byte-level vocabulary stands for."""


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token. Added tokens hold plain text: one with a character outside of the
    alphabet (a real space, say) stands for its own UTF-8, the same rule as the decoder of `tokenizers` has."""
    try:
        return bytes([BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """Return the bytes of a SentencePiece token."""
    if byte := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace(SPACE_MARK, " ").encode()
