"""Single characters that stand, in a text area, for what it can't hold: control characters and whole pasted texts.

A text area draws its document character by character, so a control character in it would reach the terminal, and a
paste of 200 kB on one line costs it most of a second a key. Both are replaced by a character of the last private-use
plane, one cell wide, which the cursor passes and backspace removes as a whole. `decode` gives the exact text back.
"""

from __future__ import annotations

from typing import Final

from tinychat.ui.foreign_text import PICTURES

_FIRST: Final = 0x100000
_LAST: Final = 0x10FFFD

FOLD_PICTURE: Final = "▤"
"""Drawn for a folded text."""
_OTHER_PICTURE: Final = "␦"
"""Drawn for what has no picture of one cell; the token inspector tells which it is."""


class StandIns:
    """The stand-ins of one text area."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._codes: dict[str, int] = {}
        self._pictures: dict[int, str] = {}

    def encode(self, text: str) -> str:
        """Return `text` with every character that must not be drawn replaced by its stand-in."""
        dangerous = {c for c in set(text) if ord(c) in PICTURES or ord(c) >= _FIRST}
        if not dangerous:
            return text
        for character in sorted(dangerous - self._codes.keys()):
            picture = PICTURES.get(ord(character), _OTHER_PICTURE)
            self._add(character, picture if len(picture) == 1 else _OTHER_PICTURE)
        return text.translate({ord(c): self._codes[c] for c in dangerous})

    def fold(self, text: str) -> str:
        """Return one stand-in for the whole of `text`."""
        return chr(self._add(text, FOLD_PICTURE))

    def decode(self, text: str) -> str:
        """Return what an encoded text stands for."""
        return text.translate(self._texts)

    def drawn(self, text: str) -> str:
        """Return an encoded text as it may be drawn, character for character."""
        return text.translate(self._pictures)

    def folds(self, text: str) -> list[str]:
        """Return the folded texts in an encoded text, in order."""
        return [self._texts[ord(c)] for c in text if self._pictures.get(ord(c)) == FOLD_PICTURE]

    def _add(self, text: str, picture: str) -> int:
        code = _FIRST + len(self._texts)
        if code > _LAST:
            raise ValueError("More than 65,533 different stand-ins in one text area.")
        self._texts[code] = text
        self._pictures[code] = picture
        if picture != FOLD_PICTURE:
            self._codes[text] = code
        return code
