"""The view of attention: the conversation, each token shaded by what it was given for the one in focus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual import events
from textual.binding import Binding

from tinychat.pictures import visible_bytes
from tinychat.protocol import Attended, PromptDescribed
from tinychat.ui.attention_layout import AttentionLayout
from tinychat.ui.attention_row import LISTED, AttentionRow
from tinychat.ui.glass import Glass
from tinychat.ui.measures import GLYPHS
from tinychat.ui.views import attention_words as words
from tinychat.ui.views.view import NOTHING, PLAYING, View, sentence
from tinychat.ui.widgets.line_widget import Line, Span, cut, spread

_GUTTER: Final = 10
_GO: Final = "Look at the token with the largest weight; 2 to 9 at the next ones"
_UNSEEN: Final = "×"
_DECIDED: Final = "◀"


class AttentionView(View):
    """Chips in paragraphs, a ground and a glyph a level; above them the largest, and the number of one."""

    NAME = "attention"

    HELP = """
**Attention.** What the position that decided the token in focus, `◀`, gave to each token up to its own: the softmax
weights of one head, their mean over a layer, or the maximum over all heads of all layers; `x` goes from one to the
next, `↑` `↓` choose a layer, `h` `H` a head. Several query heads may read one head of keys and values. The weights of a
head and of a mean sum to 1; the entropy tells how evenly. A level begins at half of the one above it, the highest at
half of the largest weight. `×` lies behind the window of the layer. Shift with the arrows looks at another token, `1`
to `9` at the largest, Enter goes to the head that gives it most. Many heads rest on the first position (Xiao et al.
2023, arXiv:2309.17453): `f` leaves it out and has the others sum to 1. Vaswani et al. 2017, arXiv:1706.03762. A large
weight need not be a reason: Jain and Wallace 2019, arXiv:1902.10186. The model runs once more for it, over what the
caches hold; every number is recomputed.
"""

    BINDINGS = [
        Binding("up", "layer(-1)", "layer", tooltip="The layer before", key_display="↑↓", id="attention.layer"),
        Binding("down", "layer(1)", "next layer", show=False, tooltip="The layer after"),
        Binding("h", "head(1)", "head", tooltip="The next head", key_display="h H", id="attention.head"),
        Binding("H", "head(-1)", "head before", show=False, tooltip="The head before"),
        Binding("x", "mode", "head/mean/max", tooltip="One head, a layer's mean, or the maximum", id="attention.mode"),
        Binding("f", "first", "without first", tooltip="Leave the first position out, or not", id="attention.first"),
        Binding("enter", "largest", "its head", show=False, tooltip="The head that gives most to the token looked at"),
        Binding("shift+left", "position(-1)", "before", show=False, tooltip="Look at the token before"),
        Binding("shift+right", "position(1)", "after", show=False, tooltip="Look at the token after"),
        Binding("shift+up", "move(-1)", "above", show=False, tooltip="Look at the token above"),
        Binding("shift+down", "move(1)", "below", show=False, tooltip="Look at the token below"),
        *(
            Binding(str(place), f"go({place})", "largest", show=False, tooltip=_GO if place == 1 else "")
            for place in range(1, LISTED + 1)
        ),
    ]  # fmt: skip

    def __init__(self, glass: Glass) -> None:
        super().__init__(glass)
        self._without_first = False
        self._position: int | None = None
        """The position looked at; None: the one that decided the token."""
        self._turn_id: int | None = None
        """The reply that it belongs to."""
        self._numbers: AttentionRow | None = None
        self._laid: AttentionLayout | None = None

    def head(self, width: int) -> Sequence[Line]:
        """Return the title, what is shown, its scale, the largest weights, and the token looked at."""
        reply = self.reply
        if reply is None or not reply.tokens:
            return sentence(NOTHING, width)
        if self.glass.followed:
            return sentence(PLAYING, width)
        if problem := self._problem:
            return sentence(problem, width, "view--warning")
        piece = visible_bytes(reply.tokens[reply.at].piece)
        right = "recomputed"
        title = cut(f"token {reply.at + 1} of {len(reply.tokens)}: {piece}", max(8, width - len(right) - 1))
        lines: list[Line] = [spread(((title, "view--title"),), ((right, "view--quiet"),), width, (" ", ""))]
        row, layout = self._row, self._layout(width)
        if row is None or layout is None:
            waiting: list[Line] = [*lines, *sentence("Asking the engine ...", width)]
            return [*waiting, *[()] * (self.head_lines - len(waiting))]  # the text below stays where it is
        lines += [words.what(row, width), *words.scale(row, width)]
        lines += words.largest(row, layout, width, self.size.height)
        return [*lines, ((cut(words.number(row, layout, self._at), width), "view--text"),)]

    def body(self, width: int) -> Sequence[Line]:
        """Return the conversation; lines out of view are only counted."""
        layout = self._layout(width)
        if layout is None or self._problem or self.glass.followed:
            return ()
        row, at = self._row, self._at
        self.row = layout.line_of(at)
        near = self.size.height
        return [
            _line(layout, number, row, at) if abs(number - self.row) <= near else () for number in range(len(layout))
        ]

    def action_layer(self, steps: int) -> None:
        """Look at another layer."""
        self.glass.heads.move_layer(steps)
        self._ask()

    def action_head(self, steps: int) -> None:
        """Look at another head."""
        self.glass.heads.move_head(steps)
        self._ask()

    def action_mode(self) -> None:
        """Go from one head to the mean, to the maximum, and back."""
        self.glass.heads.next_mode()
        self._ask()

    def action_largest(self) -> None:
        """Look at the head that gives most to the token looked at."""
        if (row := self._row) is not None and row.attended.largest:
            self.glass.heads.go(*row.attended.largest[self._at])
            self._ask()

    def action_first(self) -> None:
        """Leave the first position out, or don't."""
        self._without_first = not self._without_first
        self.update_lines()

    def action_go(self, place: int) -> None:
        """Look at one of the largest weights."""
        if (row := self._row) is not None and place <= len(row.largest):
            self._look_at(row.largest[place - 1])

    def action_position(self, steps: int) -> None:
        """Look at another position."""
        self._look_at(self._at + steps)

    def action_move(self, rows: int) -> None:
        """Look at a position some lines further."""
        if (layout := self._laid) is not None:
            self._look_at(layout.beside(self._at, rows))

    def on_click(self, event: events.Click) -> None:
        """Look at the token that was clicked; a second click goes to the head that gives it most."""
        if (layout := self._laid) is not None and (number := self.row_at(event.y)) is not None:
            position = layout.at(number, event.x - _GUTTER)
            if position is not None:
                self._look_at(position)
                if event.chain == 2:
                    self.action_largest()

    def _look_at(self, position: int) -> None:
        last = self._last
        self._position = None if position >= last else max(0, position)
        self._turn_id = self.glass.turn_id
        self.update_lines()

    def _ask(self) -> None:
        self.update_lines()
        self.glass.ask()

    @property
    def _last(self) -> int:
        """The position that decided the token in focus."""
        described, reply = self._described, self.reply
        return len(described.pieces) + reply.at - 1 if described is not None and reply is not None else 0

    @property
    def _at(self) -> int:
        """The position looked at."""
        kept = self._position if self._turn_id == self.glass.turn_id else None
        return self._last if kept is None else min(kept, self._last)

    @property
    def _described(self) -> PromptDescribed | None:
        described = self.glass.described
        return described if described is not None and described.turn_id == self.glass.turn_id else None

    @property
    def _attended(self) -> Attended | None:
        """The answer about the token in focus, once it is there."""
        reply, attended = self.reply, self.glass.heads.attended
        if reply is None or attended is None or (attended.turn_id, attended.index) != (reply.turn_id, reply.at):
            return None
        return attended

    @property
    def _problem(self) -> str:
        """Why there is nothing to see."""
        return next((answer.problem for answer in (self._attended, self._described) if answer and answer.problem), "")

    @property
    def _row(self) -> AttentionRow | None:
        attended, row = self._attended, self._numbers
        if attended is None or not attended.weights:
            return None
        if row is None or row.attended is not attended or row.without_first != self._without_first:
            row = self._numbers = AttentionRow(attended, without_first=self._without_first)
        return row

    def _layout(self, width: int) -> AttentionLayout | None:
        described, reply, layout = self._described, self.reply, self._laid
        if described is None or described.problem or reply is None:
            self._laid = None
            return None
        if layout is None or layout.described is not described or layout.width != width - _GUTTER:
            layout = self._laid = AttentionLayout(described, width - _GUTTER)
        layout.follow(reply.tokens)
        return layout


def _line(layout: AttentionLayout, number: int, row: AttentionRow | None, at: int) -> Line:
    """Return a line of the conversation."""
    spans: list[Span] = [(layout.heading(number).ljust(_GUTTER), "view--quiet")]
    for chip in layout.chips(number):
        glyph, style = _look(row, chip.position)
        spans += [(f"{chip.label}{glyph}", "view--row" if chip.position == at else style), (" ", "")]
    return tuple(spans)


def _look(row: AttentionRow | None, position: int) -> tuple[str, str]:
    """Return the glyph of a position, and what it is drawn in."""
    if row is None or position > len(row.weights):
        return " ", "view--quiet"
    if position == len(row.weights):
        return _DECIDED, "view--mark"
    if position < row.attended.first:
        return _UNSEEN, "view--lost"
    level = row.level(position)
    return (" ", "view--text") if level is None else (GLYPHS[level], f"heat--{level + 1}")
