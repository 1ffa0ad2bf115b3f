"""A reply laid out as chips, a token a chip, cheap to append to: the twin of `wrapping.py` for tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tinychat.pictures import visible_bytes
from tinychat.protocol import TokenEmitted
from tinychat.ui.measures import Measure
from tinychat.ui.widgets.line_widget import cut


@dataclass(frozen=True, slots=True)
class PlacedChip:
    """A token and its place in a line."""

    index: int
    start: int
    """Its first cell."""
    label: str
    """Its characters, made visible; the bytes where they are no characters."""
    glyph: str
    """How high it lies on the scale; also what parts it from the next chip."""
    level: int | None
    """0 to 4, None where the number isn't known."""
    drafted: bool

    @property
    def end(self) -> int:
        """The cell after its last."""
        return self.start + cell_len(self.label) + 1


class TokenFlow:
    """Lines of chips, at most `width` cells each; a line ends with a token that ends in a newline."""

    def __init__(self, width: int, measure: Measure, tokens: Sequence[TokenEmitted] = ()) -> None:
        self.width = max(4, width)
        self.measure = measure
        self.lines: list[list[PlacedChip]] = [[]]
        self._firsts: list[int] = [0]
        """Index of the first token of each line."""
        self._count = 0
        self._broken = False
        """Whether the next token begins a line."""
        self.append(tokens)

    def append(self, tokens: Sequence[TokenEmitted]) -> int:
        """Add tokens and return the index of the first line that changed."""
        first = len(self.lines) - 1
        for token in tokens:
            level = self.measure.level(token)
            label = cut(visible_bytes(token.piece) or "␀", self.width - 1)
            line = self.lines[-1]
            start = line[-1].end if line else 0
            if line and (self._broken or start + cell_len(label) + 1 > self.width):
                line, start = [], 0
                self.lines.append(line)
                self._firsts.append(self._count)
            line.append(PlacedChip(self._count, start, label, self.measure.glyph(level), level, token.accepted))
            self._count += 1
            self._broken = token.piece.endswith(b"\n")
        return first

    def line_of(self, index: int) -> int:
        """Return the number of the line that token `index` stands in."""
        return max(0, bisect_right(self._firsts, index) - 1)

    def at(self, line: int, cell: int) -> int | None:
        """Return the index of the token drawn at a cell, None where there is none."""
        if not 0 <= line < len(self.lines):
            return None
        return next((chip.index for chip in self.lines[line] if chip.start <= cell < chip.end), None)

    def beside(self, index: int, lines: int) -> int:
        """Return the token so many lines below token `index` (above, where negative) that stands nearest to it."""
        at = self.line_of(index)
        to = min(max(at + lines, 0), len(self.lines) - 1)
        here = next((chip for chip in self.lines[at] if chip.index == index), None)
        if to == at or here is None or not self.lines[to]:
            return index
        return min(self.lines[to], key=lambda chip: abs(chip.start - here.start)).index
