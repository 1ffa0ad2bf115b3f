"""The typed text as the model will see it: pieces, live."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tinychat.pictures import visible_bytes
from tinychat.protocol import Piece
from tinychat.ui import figures
from tinychat.ui.pieces import Chip, chip_start, chips, lost_bytes, piece_at, token_count
from tinychat.ui.widgets.line_widget import Line, LineWidget, Span, cells, cut, spread

_BLOCK = 128
"""Pieces: chips are looked at from a multiple of this on, the one before the cursor's."""


class TokenInspector(LineWidget):
    """A rule with the count, rows of chips, and the piece at the cursor.

    Only chips near the cursor are laid out, so a pasted book costs no more than a line.
    """

    HELP = """
**Token inspector.** What you type, cut into the pieces the model reads. A chip is one token, or several that make up
one character (`🦙³`). `␣` is a space, `↵` a newline, `<U+200B>` a character without ink. Struck chips have no token in
this vocabulary: the model will not see them.
"""

    COMPONENT_CLASSES = {
        "chip--odd", "chip--odd-edge", "chip--even", "chip--even-edge", "chip--cursor", "chip--cursor-edge",
        "chip--lost", "inspector--rule", "inspector--count", "inspector--text", "inspector--warning",
    }  # fmt: skip

    DEFAULT_CSS = """
    TokenInspector {
        height: auto;
        & .chip--odd { color: $chip-text; background: $chip-odd; }
        & .chip--odd-edge { color: $chip-odd; }
        & .chip--even { color: $chip-text; background: $chip-even; }
        & .chip--even-edge { color: $chip-even; }
        & .chip--cursor { color: $chip-cursor-text; background: $chip-cursor; text-style: bold; }
        & .chip--cursor-edge { color: $chip-cursor; }
        & .chip--lost { color: $error; text-style: strike; }
        & .inspector--rule { color: $rule; }
        & .inspector--count { color: $foreground; text-style: bold; }
        & .inspector--text { color: $quiet; }
        & .inspector--warning { color: $error; text-style: bold; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._pieces: tuple[Piece, ...] = ()
        self._ready = False
        self._offset = 0
        self._limit = 0
        self._rows = 1

    def show(self, pieces: tuple[Piece, ...], *, ready: bool = True) -> None:
        """Show the pieces of the whole draft; `ready` is False while there is no tokenizer."""
        self._pieces, self._ready = pieces, ready
        self.update_lines()

    def move_cursor(self, offset: int) -> None:
        """Follow the cursor, given as a byte offset into the draft."""
        if offset != self._offset:
            self._offset = offset
            self.update_lines()

    def set_context(self, tokens: int) -> None:
        """Set what the draft's length is a share of."""
        self._limit = tokens
        self.update_lines()

    def set_rows(self, rows: int) -> None:
        """Show so many rows of chips; with none, the count alone."""
        if rows != self._rows:
            self._rows = rows
            self.update_lines()

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return rule, chips and the piece at the cursor."""
        if not self._rows:
            return [self._rule(width)]
        return [self._rule(width), *self._chip_rows(width), self._at_cursor(width)]

    def _rule(self, width: int) -> Line:
        """Return the count, its share of the context, and what the vocabulary has no token for."""
        left: list[Span] = [("─ ", "inspector--rule"), ("tokens ", "inspector--text")]
        right: Line = (("─", "inspector--rule"),)
        if self._ready:
            tokens = token_count(self._pieces)
            left.append((figures.count(tokens), "inspector--count"))
            if self._limit:
                style = "inspector--warning" if tokens > self._limit else "inspector--text"
                left.append((f" · {figures.share(tokens, self._limit)} of {figures.count(self._limit)}", style))
        else:
            left.append(("· no tokenizer loaded yet", "inspector--text"))
        if lost := lost_bytes(self._pieces):
            noun = "byte has" if lost == 1 else "bytes have"
            warning = f" {lost} {noun} no token: the model won't see {'it' if lost == 1 else 'them'} "
            right = ((warning, "inspector--warning"), ("─", "inspector--rule"))
            if cells((*left, *right)) + 3 > width:
                return ((warning[1:], "inspector--warning"),)
        return spread((*left, (" ", "")), right, width, ("─", "inspector--rule"))

    def _chip_rows(self, width: int) -> list[Line]:
        """Return the rows of chips, from the beginning of the draft if the cursor is in view then, else around it."""
        drawn, cursor, more = self._around_cursor(width)
        rows, end = self._flow(drawn, 0, width)
        if end <= cursor < len(drawn):
            # A quarter of a row is left for what follows the cursor; where breaks take more, the start moves on.
            start, used = cursor, 0
            while start > 0 and (used := used + cells(drawn[start])) <= self._rows * width - width // 4:
                start -= 1
            while cursor >= end:
                start += 1
                rows, end = self._flow(drawn, start, width)
            rows[0] = (("…", "inspector--text"), *rows[0])
        if (more or end < len(drawn)) and cells(rows[-1]) < width:
            rows[-1] = (*rows[-1], ("…", "inspector--text"))
        return rows + [()] * (self._rows - len(rows))

    def _flow(self, drawn: list[Line], start: int, width: int) -> tuple[list[Line], int]:
        """Fill the rows with chips from `start` on; return them, and the index of the first chip that has no place."""
        rows: list[Line] = [()]
        for index in range(start, len(drawn)):
            mark = 1 if start > 0 and len(rows) == 1 else 0
            if cells((*rows[-1], *drawn[index])) > width - mark and rows[-1]:
                if len(rows) == self._rows:
                    return rows, index
                rows.append(())
            rows[-1] += drawn[index]
        return rows, len(drawn)

    def _around_cursor(self, width: int) -> tuple[list[Line], int, bool]:
        """Return the chips near the cursor as they are drawn, which of them it stands in, and whether more follow.

        They begin at a fixed place of the draft, so that a chip keeps its colour while the cursor moves.
        """
        pieces = self._pieces
        at = piece_at(pieces, self._offset)
        index = chip_start(pieces, min(max(0, at // _BLOCK - 1) * _BLOCK, max(0, len(pieces) - 1)))
        drawn: list[Line] = []
        cursor = 0
        for number, chip in enumerate(islice(chips(pieces, index), 3 * _BLOCK)):
            here = index <= at < index + len(chip.pieces)
            cursor = number if here else cursor
            drawn.append(_drawn(chip, odd=number % 2 == 1, here=here, width=width))
            index += len(chip.pieces)
        return drawn, cursor, index < len(pieces)

    def _at_cursor(self, width: int) -> Line:
        """Return id, bytes and text of the piece at the cursor."""
        if not self._pieces:
            return ((" id · bytes · piece at the cursor", "inspector--rule"),)
        start = chip_start(self._pieces, piece_at(self._pieces, self._offset))
        chip = next(chips(self._pieces, start))
        ids = " ".join(map(str, chip.ids)) or "no id"
        # Of a long piece the beginning is enough to know it by; the id tells the rest.
        data = chip.data[:12].hex(" ").upper() + (" …" if len(chip.data) > 12 else "")
        text = f" id{'s' if len(chip.ids) > 1 else ''} {ids} · {data} · "
        piece = cut(visible_bytes(chip.data), max(1, width - len(text)))
        return ((text, "inspector--text"), (piece, "inspector--count"))


def _drawn(chip: Chip, *, odd: bool, here: bool, width: int) -> Line:
    """Return a chip between half blocks, which tell neighbours apart where colour doesn't."""
    label = cut(chip.label, max(1, min(width - 2, 40)))
    kind = "cursor" if here else "odd" if odd else "even"
    body = "chip--lost" if chip.lost and not here else f"chip--{kind}"
    return (("▐", f"chip--{kind}-edge"), (label, body), ("▌", f"chip--{kind}-edge"))
