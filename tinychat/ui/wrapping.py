"""Text broken into lines, cheap to append to: what a streamed reply is drawn from."""

from __future__ import annotations

import re
from typing import Final

from rich.cells import cell_len, chop_cells

_WORD: Final = re.compile(r"[^\S\xa0]*[\S\xa0]+[^\S\xa0]*|[^\S\xa0]+")
"""A word with the spaces around it; a no-break space is part of the word. Only a paragraph's first word has spaces
before it: its indent."""
_TAB: Final = "    "


class WrappedText:
    """Lines of at most `width` cells, broken at spaces where possible and inside words where not.

    Only the last line of a greedy wrap can change when text is added, so `append` costs what is new, however long the
    whole is. Spaces at a break hang over the edge instead of starting the next line.
    """

    def __init__(self, width: int, text: str = "") -> None:
        """Wrap `text`, which has to be free of control characters, at `width` cells (at least 1)."""
        self.width = max(1, width)
        self.lines: list[str] = [""]
        self.append(text)

    def append(self, text: str) -> int:
        """Add text and return the index of the first line that changed."""
        first = len(self.lines) - 1
        paragraphs = (self.lines.pop() + text.replace("\t", _TAB)).split("\n")
        for paragraph in paragraphs:
            self._wrap(paragraph)
        return first

    def _wrap(self, paragraph: str) -> None:
        """Add the lines of a text without newlines."""
        line = ""
        cells = 0
        for match in _WORD.finditer(paragraph):
            word = match.group()
            width = cell_len(word.rstrip())
            if line and cells + width > self.width:
                self.lines.append(line)
                line, cells = "", 0
            if width > self.width:
                *full, word = self._chop(word)
                self.lines.extend(full)
            line += word
            cells += cell_len(word)
        self.lines.append(line)

    def _chop(self, word: str) -> list[str]:
        """Break a word too long for a line; the spaces after it hang on its last piece."""
        ink = word.rstrip()
        pieces = chop_cells(ink, self.width)
        pieces[-1] += word[len(ink) :]
        return pieces
