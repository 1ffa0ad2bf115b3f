"""The map of the cache laid out: blocks side by side in rows, a cell a position or a few."""

from __future__ import annotations

from bisect import bisect_right
from itertools import groupby
from typing import Final

from tinychat.protocol import CachedBlock, CachedRun, CacheMapped
from tinychat.ui.widgets.line_widget import Line, Span

SCALES: Final = (1, 2, 4, 8)
"""Positions that a cell may stand for."""
LET_GO: Final = "×"
_OF_SEQUENCE: Final = {"drawn": "●", "accepted": "◆", "guessed": "?"}
_LETTERS: Final = {"template": "t", "person": "y", "model": "r", "unknown": "u"}


class CacheLayout:
    """All rows of a map: made once an answer, drawn as far as they are in view. A row is two lines: blocks, cells."""

    def __init__(self, mapped: CacheMapped, table: int, width: int, lines: int, *, whole: bool) -> None:
        """Lay out.

        Args:
            mapped: What the engine told.
            table: Which of its tables of blocks.
            width: In cells.
            lines: How many there are in view.
            whole: Have a cell stand for several positions, where only so all of them are in view.
        """
        self.mapped = mapped
        self.table = mapped.tables[table]
        self._starts = [run.start for run in mapped.runs]
        self._gutter = len(str(mapped.capacity)) + 1
        blocks = -(-mapped.length // mapped.block)
        for scale in SCALES:
            self.scale = scale
            self._cells = mapped.block // scale
            self._across = max(1, (width - self._gutter - 1) // (self._cells + 1))
            self.rows = -(-blocks // self._across)
            fits = self._gutter + self._cells + 2 <= width
            if fits and (not whole or 2 * self.rows <= lines):
                break

    @property
    def positions(self) -> int:
        """Positions of a whole row."""
        return self._across * self.mapped.block

    def row_of(self, position: int) -> int:
        """Return the row that a position lies in."""
        return position // self.positions

    def run_of(self, position: int) -> CachedRun:
        """Return the run that a position belongs to."""
        return self.mapped.runs[max(0, bisect_right(self._starts, position) - 1)]

    def block_of(self, position: int) -> CachedBlock | None:
        """Return the block that a position lies in; None: it was let go."""
        place = position // self.mapped.block - self.table.first
        return self.table.blocks[place] if 0 <= place < len(self.table.blocks) else None

    def position_at(self, row: int, x: int) -> int | None:
        """Return the position drawn at cell `x` of a row, None where there is none."""
        block, cell = divmod(x - self._gutter, self._cells + 1)
        if not 0 <= block < self._across or not cell:
            return None
        position = row * self.positions + block * self.mapped.block + (cell - 1) * self.scale
        return position if position < self.mapped.length else None

    def lines(self, row: int, focus: int) -> tuple[Line, Line]:
        """Return the two lines of a row; `focus` is the position a person looks at."""
        first = row * self.positions
        scale = f"1:{self.scale}" if self.scale > 1 else ""
        numbers: list[Span] = [(f"{scale:>{self._gutter - 1}} ", "view--quiet")]
        cells: list[Span] = [(f"{first:>{self._gutter - 1}} ", "view--quiet")]
        for start in range(first, min(first + self.positions, self.mapped.length), self.mapped.block):
            block = self.block_of(start)
            shared = block is not None and block.references > 1
            border = "║" if shared else "│"
            style = "map--shared" if shared else "map--border"
            name = f"{self._name(block):<{self._cells}}"
            numbers += [(border, style), (name, style if shared else "view--quiet")]
            cells.append((border, style))
            cells += self._block(start, focus)
        cells.append(("│", "map--border"))
        return tuple(numbers), tuple(cells)

    def _name(self, block: CachedBlock | None) -> str:
        """Return a block's number in the pool and who shares it, as far as there is room for whole words."""
        if block is None:
            return ""
        number = f"#{block.number}"
        sharers = f" ={letters(block.sharers)}" if block.sharers else ""
        return next((name for name in (number + sharers, number) if len(name) <= self._cells), "")

    def _block(self, start: int, focus: int) -> list[Span]:
        """Return the cells of a block."""
        end = min(start + self.mapped.block, self.mapped.length)
        gone = self.block_of(start) is None
        drawn = [self._cell(position, focus, gone=gone) for position in range(start, end, self.scale)]
        return [("".join(glyph for glyph, _ in run), style) for style, run in groupby(drawn, key=lambda cell: cell[1])]

    def _cell(self, position: int, focus: int, *, gone: bool) -> tuple[str, str]:
        run = self.run_of(position)
        glyph, style = (LET_GO, "view--lost") if gone else (glyph_of(run), f"map--{source_of(run)}")
        return glyph, "view--row" if position <= focus < position + self.scale else style


def source_of(run: CachedRun) -> str:
    """Return where a run came from: template, system, person, model, unknown."""
    return "system" if run.role == "system" and run.origin == "person" else run.origin


def glyph_of(run: CachedRun) -> str:
    """Return what a position of a run is drawn as: a letter for its source, a capital where it was computed."""
    if run.arrival in _OF_SEQUENCE:
        return _OF_SEQUENCE[run.arrival]
    letter = "s" if source_of(run) == "system" else _LETTERS[run.origin]
    return letter if run.arrival == "reused" else letter.upper()


def letters(kept: tuple[int, ...]) -> str:
    """Return the names of kept sequences: A, B, ..."""
    return "".join(chr(ord("A") + number) for number in kept)
