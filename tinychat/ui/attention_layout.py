"""A conversation laid out as chips, the prompt and behind it the reply: where each position is drawn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tinychat.pictures import visible_bytes
from tinychat.protocol import Piece, PromptDescribed, Span, TokenEmitted
from tinychat.ui.prompt_layout import PromptLayout, PromptLine, source_of


@dataclass(frozen=True, slots=True)
class PositionChip:
    """A position of the sequence, and its place in a line: a label, a glyph and a space."""

    position: int
    start: int
    """Its first cell."""
    label: str

    @property
    def end(self) -> int:
        """The cell after its last."""
        return self.start + cell_len(self.label) + 2


class AttentionLayout:
    """All lines, at most `width` cells each. The prompt is laid out once, the reply again when it has grown."""

    def __init__(self, described: PromptDescribed, width: int) -> None:
        """Lay out the prompt."""
        self.described = described
        self.width = width
        self.pieces: tuple[Piece, ...] = described.pieces
        """Of all positions."""
        self._lines: list[PromptLine] = PromptLayout(described, width, ids=False).lines
        self._reply_line = len(self._lines)
        self._set_firsts()

    def follow(self, tokens: Sequence[TokenEmitted]) -> None:
        """Lay out the reply, if it has other tokens than before."""
        before = len(self.described.pieces)
        if len(tokens) == len(self.pieces) - before:
            return
        pieces = tuple(Piece(token.token_id, token.piece, 0) for token in tokens)
        self.pieces = self.described.pieces + pieces
        whole = PromptDescribed(0, 0, self.pieces, (Span(before, len(self.pieces), "model", "assistant"),))
        self._lines[self._reply_line :] = PromptLayout(whole, self.width, ids=False).lines
        self._set_firsts()

    def __len__(self) -> int:
        """The number of lines."""
        return len(self._lines)

    def line_of(self, position: int) -> int:
        """Return the number of the line that a position stands in."""
        return max(0, bisect_right(self._firsts, position) - 1)

    def label(self, position: int) -> str:
        """Return the token at a position as it is drawn where there is room."""
        return visible_bytes(self.pieces[position].data) or "no bytes"

    def source(self, position: int) -> str:
        """Return where a position came from, in a word."""
        return source_of(self._lines[self.line_of(position)].span)

    def heading(self, number: int) -> str:
        """Return the source where a stretch of one begins, else nothing."""
        line = self._lines[number]
        return source_of(line.span) if line.begins else ""

    def chips(self, number: int) -> list[PositionChip]:
        """Return what stands in a line."""
        line = self._lines[number]
        found: list[PositionChip] = []
        for position, label in enumerate(line.labels, line.first):
            found.append(PositionChip(position, found[-1].end if found else 0, label))
        return found

    def at(self, number: int, cell: int) -> int | None:
        """Return the position drawn at a cell of a line, None where there is none."""
        if not 0 <= number < len(self._lines):
            return None
        return next((chip.position for chip in self.chips(number) if chip.start <= cell < chip.end), None)

    def beside(self, position: int, lines: int) -> int:
        """Return the position so many lines below another one (above, where negative) that stands nearest to it."""
        number = self.line_of(position)
        to = min(max(number + lines, 0), len(self._lines) - 1)
        here = next((chip for chip in self.chips(number) if chip.position == position), None)
        if here is None or to == number:
            return position
        return min(self.chips(to), key=lambda chip: abs(chip.start - here.start)).position

    def _set_firsts(self) -> None:
        self._firsts = [line.first for line in self._lines]
