"""The pieces of a typed text as the inspector shows them: chips, each a whole number of characters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinychat.pictures import visible_bytes
from tinychat.protocol import Piece

_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Chip:
    """One or more tokens that make up whole characters, or bytes that have no token."""

    pieces: tuple[Piece, ...]

    @property
    def data(self) -> bytes:
        """The bytes of the text that the chip covers."""
        return b"".join(piece.data for piece in self.pieces)

    @property
    def ids(self) -> tuple[int, ...]:
        """Its token ids, in order."""
        return tuple(piece.token_id for piece in self.pieces if piece.token_id is not None)

    @property
    def lost(self) -> int:
        """How many of its bytes have no token, so that the model will not see them."""
        return lost_bytes(self.pieces)

    @property
    def special(self) -> bool:
        """Whether it is a control token."""
        return any(piece.special for piece in self.pieces)

    @property
    def label(self) -> str:
        """What is drawn: the characters, those without ink made visible; the bytes where they are no characters."""
        text = visible_bytes(self.data)
        parts = len(self.pieces)
        return text + (str(parts).translate(_SUPERSCRIPT) if parts > 1 else "")


def lost_bytes(pieces: Sequence[Piece]) -> int:
    """Count the bytes that the vocabulary has no token for."""
    return sum(len(piece.data) for piece in pieces if piece.token_id is None)


def token_count(pieces: Sequence[Piece]) -> int:
    """Count the tokens; bytes without one are not among them."""
    return sum(piece.token_id is not None for piece in pieces)


def chips(pieces: Sequence[Piece], start: int = 0) -> Iterator[Chip]:
    """Group the pieces from index `start` on into chips, lazily: of a 200 kB text only what is looked at costs.

    The pieces join to valid UTF-8, so a character begins wherever a piece doesn't begin with a continuation byte.
    """
    first = start
    for index in range(start + 1, len(pieces)):
        if not _continues(pieces[index]):
            yield Chip(tuple(pieces[first:index]))
            first = index
    if first < len(pieces):
        yield Chip(tuple(pieces[first:]))


def piece_at(pieces: Sequence[Piece], offset: int) -> int:
    """Return the index of the piece that covers byte `offset`, or of the last one where the text ends before it."""
    return max(0, bisect_right(pieces, offset, key=lambda piece: piece.start) - 1)


def chip_start(pieces: Sequence[Piece], index: int) -> int:
    """Return the index of the first piece of the chip that piece `index` belongs to."""
    while index > 0 and _continues(pieces[index]):
        index -= 1
    return index


def _continues(piece: Piece) -> bool:
    """Whether the piece begins inside a character."""
    return bool(piece.data) and piece.data[0] & 0xC0 == 0x80
