"""The logit lens: what the model would have said after each layer, at the token in focus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tinychat.pictures import visible_bytes
from tinychat.protocol import Alternative, Lensed, LensLayer
from tinychat.ui import figures
from tinychat.ui.measures import GLYPHS
from tinychat.ui.views.view import NOTHING, PLAYING, View, column, sentence
from tinychat.ui.widgets.line_widget import Line, Span, cut, spread

_ROOMY: Final = 16
"""Lines from which on the tokens of the layer in focus are spelt out."""
_LAYER: Final = 6
_RANK: Final = 6
_CHANCE: Final = 10
_LEAST: Final = 8
"""Cells that a token takes at least."""
_SAID: Final = "●"
_SETTLES: Final = "◆"


class LensView(View):
    """A row a layer: rank and probability of the token that was said, and the best tokens, the best first."""

    NAME = "lens"

    HELP = """
**Logit lens.** What the model would have said after each layer, had that been its last: the final norm and the head
read the residual stream there, for the token in focus. A row has the rank and the probability of the token that was
said, `●`, and the most probable tokens with theirs. `◆` marks the layer where the answer settles: from it on that token
stays the first. `↑` `↓` choose a layer. nostalgebraist 2020, "interpreting GPT: the logit lens". Early layers need not
speak the head's language, so what they say may be noise where the model is not: Belrose et al. 2023, arXiv:2303.08112.
The model runs once more for it, over what the caches hold; every number is recomputed.
"""

    def head(self, width: int) -> Sequence[Line]:
        """Return the title, where the answer settles, the layer in focus, and the names of the columns."""
        reply = self.reply
        if reply is None or not reply.tokens:
            return sentence(NOTHING, width)
        lensed = self._lensed
        if lensed is None:
            return sentence(PLAYING if self.glass.followed else "Asking the engine ...", width)
        if lensed.problem:
            return sentence(lensed.problem, width, "view--warning")
        piece = visible_bytes(reply.tokens[lensed.index].piece) if lensed.index < len(reply.tokens) else ""
        right = "recomputed"
        title = cut(f"token {lensed.index + 1} of {len(reply.tokens)}: {piece}", max(8, width - len(right) - 1))
        lines: list[Line] = [spread(((title, "view--title"),), ((right, "view--quiet"),), width, (" ", ""))]
        lines.append(((cut(_verdict(lensed), width), "view--text"),))
        if self.size.height >= _ROOMY and self.row < len(lensed.layers):
            lines += [*_details(self.row, lensed.layers[self.row], lensed.chosen, width), ()]
        names = f"{' layer':<{_LAYER}}{'rank':>{_RANK}}{_SAID + ' said':>{_CHANCE}}  most probable, in %"
        return [*lines, ((cut(names, width), "view--quiet"),)]

    def body(self, width: int) -> Sequence[Line]:
        """Return a row a layer."""
        lensed = self._lensed
        if lensed is None:
            return ()
        settled = lensed.settled
        room = width - _LAYER - _RANK - _CHANCE - 2
        columns = min(max((len(layer.best) for layer in lensed.layers), default=0), max(1, room // _LEAST))
        size = room // max(1, columns)
        return [
            _row(number, layer, lensed.chosen, columns, size, here=number == self.row, settles=number == settled)
            for number, layer in enumerate(lensed.layers)
        ]

    @property
    def _lensed(self) -> Lensed | None:
        """The answer about the token in focus, once it is there."""
        reply, lensed = self.reply, self.glass.lensed
        if reply is None or lensed is None or (lensed.turn_id, lensed.index) != (reply.turn_id, reply.at):
            return None
        return lensed


def _verdict(lensed: Lensed) -> str:
    """Say where the answer settles."""
    if not lensed.layers or lensed.chosen is None:
        return "No token was said here yet."
    settled, last = lensed.settled, lensed.layers[-1]
    if settled is not None:
        return f"{_SETTLES} settles at layer {settled} of {len(lensed.layers) - 1}: from there on it ranks first."
    return "" if last.rank is None else f"Never settles: after the last layer it ranks {figures.count(last.rank)}."


def _row(
    number: int, layer: LensLayer, chosen: int | None, columns: int, size: int, *, here: bool, settles: bool
) -> Line:
    """Return one layer, with so many tokens of `size` cells each."""
    style = "view--title" if here else "view--text"
    rank = "" if layer.rank is None else str(layer.rank)
    chance = "" if layer.probability is None else figures.chance(layer.probability)
    spans: list[Span] = [
        (f"{'›' if here else ' '}{number:>4}", style),
        (_SETTLES if settles else " ", "view--mark"),
        (f"{rank:>{_RANK}}{chance:>{_CHANCE}}  ", style),
    ]
    for token in layer.best[:columns]:
        spans += _cell(token, size, said=token.token_id == chosen)
    return tuple(spans)


def _cell(token: Alternative, width: int, *, said: bool) -> list[Span]:
    """Return a token and its probability in percent, on a ground that tells it too."""
    level = min(max(int(token.probability * len(GLYPHS)), 0), len(GLYPHS) - 1)
    percent = f"{min(100 * token.probability, 100):.0f}"
    label = f"{_SAID if said else ''}{visible_bytes(token.piece) or 'no bytes'}"
    number = f"{percent:>3}"
    ground = f"heat--{level + 1}"
    return [(column(label, width - len(number) - 1), "view--mark" if said else ground), (number, ground), (" ", "")]


def _details(number: int, layer: LensLayer, chosen: int | None, width: int) -> list[Line]:
    """Spell out the tokens of the layer in focus."""
    lines: list[Line] = [((f"after layer {number}", "view--quiet"),)]
    for token in layer.best:
        mark = _SAID if token.token_id == chosen else " "
        text = f"{mark} {figures.chance(token.probability):>9}  {visible_bytes(token.piece) or 'no bytes'}"
        right = f"id {token.token_id}"
        left = cut(text, max(8, width - len(right) - 1))
        lines.append(spread(((left, "view--text"),), ((right, "view--quiet"),), width, (" ", "")))
    return lines
