"""The tokens of two replies, a line for those that cover the same bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from textual import events
from textual.binding import Binding

from tinychat.pictures import visible_bytes
from tinychat.protocol import TokenEmitted
from tinychat.ui import figures
from tinychat.ui.alignment import Stretch
from tinychat.ui.pair import NAMES, Pair
from tinychat.ui.pair_words import PARTS
from tinychat.ui.widgets.divergence_line import nats
from tinychat.ui.widgets.line_widget import Line, LineWidget, cut

_NUMBER: Final = 7
_CHANCE: Final = 8
_NATS: Final = 9
_WIDEST: Final = 36
"""Cells of a column of tokens: further apart, a line is hard to follow."""


class AlignedTokens(LineWidget, can_focus=True):
    """Number, A's tokens and their probability, B's and theirs, and KL(A‖B). It follows the newest until scrolled."""

    HELP = """
**Tokens side by side.** Each line holds the tokens of A and of B that cover
the same bytes: one of each where the vocabularies agree, several where one
cuts finer (parted by `|`). `p` is the model's own probability of them, before
the sampler; `KL` is KL(A‖B), in nats. `≠` marks the first difference; from
there on each goes its own way, and a line holds the next token of each.
`↑` `↓` `PgUp` `PgDn` `Home` `End` scroll, `F5` goes to the first difference.
"""
    BINDING_GROUP_TITLE = "Tokens side by side"

    BINDINGS = [
        Binding("up", "scroll_rows(-1)", "up", show=False, tooltip="A line up"),
        Binding("down", "scroll_rows(1)", "down", show=False, tooltip="A line down"),
        Binding("pageup", "scroll_rows(-10)", "page up", show=False, tooltip="Ten lines up"),
        Binding("pagedown", "scroll_rows(10)", "page down", show=False, tooltip="Ten lines down"),
        Binding("home", "scroll_rows(-1000000)", "first", show=False, tooltip="The first tokens"),
        Binding("end", "scroll_rows(1000000)", "last", show=False, tooltip="The newest tokens, and follow them"),
    ]

    COMPONENT_CLASSES = {"aligned--head", "aligned--token", "aligned--quiet", "aligned--parts", "aligned--focus"}

    DEFAULT_CSS = """
    AlignedTokens {
        height: 1fr;
        & .aligned--head { color: $quiet; }
        & .aligned--token { color: $foreground; }
        & .aligned--quiet { color: $quiet; }
        & .aligned--parts { color: $warning; text-style: bold; }
        & .aligned--focus { color: $accent; text-style: bold; }
    }
    """

    def __init__(self, pair: Pair, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._pair = pair
        self._top: int | None = None
        """The first line in view; None follows the newest."""

    def follow(self) -> None:
        """Show the newest tokens from now on."""
        self._top = None
        self.update_lines()

    def go_to_parting(self) -> None:
        """Show the first difference, and what came before it."""
        alignment = self._pair.alignment
        if alignment is not None and alignment.difference is not None:
            self._top = max(0, len(alignment.stretches) - self.size.height // 2)
            self.update_lines()

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the head and the lines in view."""
        room = max(1, self.size.height - 1)
        alignment = self._pair.alignment
        column = min(max(4, (width - _NUMBER - _NATS - 2 * _CHANCE) // 2), _WIDEST)
        lines = [self._head(column)]
        if alignment is None:
            return [*lines, ((" The tokens of two replies to one question, once both answer.", "aligned--quiet"),)]
        rows = alignment.rows()
        top = max(0, rows - room)
        top = top if self._top is None else min(self._top, top)
        lines += [self._row(number, column) for number in range(top, min(top + room, rows))]
        return lines

    def _head(self, column: int) -> Line:
        mark = "›" if self.has_focus else " "
        parts = [f"{name}".ljust(column) + "p".rjust(_CHANCE - 2) + "  " for name in NAMES]
        return ((f"{mark}token ", "aligned--focus" if self.has_focus else "aligned--head"), (
            "".join(parts) + "KL nats".rjust(_NATS - 1), "aligned--head"))  # fmt: skip

    def _row(self, number: int, column: int) -> Line:
        alignment = self._pair.alignment
        assert alignment is not None
        row = alignment.row(number)
        parts = alignment.difference is not None and number == len(alignment.stretches)
        style = "aligned--parts" if parts else "aligned--token"
        mark = PARTS if parts else " "
        line: list[tuple[str, str]] = [(f"{mark}{row.first[0] + 1:>4}  ", style if parts else "aligned--quiet")]
        for side, (start, end) in enumerate((row.first, row.second)):
            tokens = alignment.replies[side].tokens[start:end]
            text = cut("|".join(visible_bytes(token.piece) or "␀" for token in tokens), column - 1)
            if not tokens:
                text = "the end" if parts else ""
            line.append((text + " " * (column - cell_len(text)), style))
            line.append((chance(tokens).rjust(_CHANCE - 2) + "  ", "aligned--quiet"))
        line.append((self._nats(row).rjust(_NATS - 1), "aligned--token"))
        return tuple(line)

    def _nats(self, row: Stretch) -> str:
        index = row.first[0]
        return nats(self._pair.divergences[index]) if index < len(self._pair.divergences) else ""

    def action_scroll_rows(self, lines: int) -> None:
        """Scroll; at the end the newest tokens are followed again."""
        alignment = self._pair.alignment
        last = max(0, (alignment.rows() if alignment else 0) - max(1, self.size.height - 1))
        top = min(max((last if self._top is None else self._top) + lines, 0), last)
        self._top = None if top == last else top
        self.update_lines()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll up."""
        event.stop()
        self.action_scroll_rows(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll down."""
        event.stop()
        self.action_scroll_rows(3)

    def on_resize(self) -> None:
        """Show as many lines as there is room for."""
        self.update_lines()

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.update_lines()


def chance(tokens: Sequence[TokenEmitted]) -> str:
    """Return the probability of tokens, one after the other; "" where it isn't known."""
    if not tokens or any(token.logprob is None for token in tokens):
        return ""
    return figures.chance(math.exp(sum(token.logprob or 0.0 for token in tokens))).replace(" ", "")
