"""The view of one token: every number the engine told of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.binding import Binding

from tinychat.pictures import visible_bytes
from tinychat.ui import figures, token_legend
from tinychat.ui.measures import MEASURES, entropy_bits, probability
from tinychat.ui.reply_tokens import ReplyTokens, surprise
from tinychat.ui.views.view import NOTHING, View, column, sentence
from tinychat.ui.widgets.line_widget import Line

_LABEL = 14


class TokensView(View):
    """The token in focus, the scale of the chips, and the figures of the reply."""

    NAME = "tokens"

    HELP = """
**Tokens.** The reply as the model made it, a chip a token, coloured by one measure at a time; `c` goes on to the next.
Surprise is -log2 of the probability the model gave the token, in bits (Shannon 1948), perplexity 2 to the mean of it
(Jelinek et al. 1977): the number of equally likely tokens the choice was as hard as. Entropy is the mean surprise that
was to be expected at that place, rank the token's place among all, 1 the most probable. All are the model's own, before
the sampler. What people write surprises a model again and again, what greedy search makes hardly ever (Holtzman et al.
2019, arXiv:1904.09751). Underlined tokens had been drafted (Leviathan et al. 2023, arXiv:2211.17192), an italic one was
dictated by you.
"""

    BINDINGS = [
        Binding(
            "c", "screen.next_measure", "colour by", tooltip="Colour the tokens by another measure", id="tokens.measure"
        ),
        Binding("up", "screen.focus_line(-1)", "line above", show=False, tooltip="The token above"),
        Binding("down", "screen.focus_line(1)", "line below", show=False, tooltip="The token below"),
    ]

    def head(self, width: int) -> Sequence[Line]:
        """Return everything."""
        reply = self.reply
        if reply is None or not reply.tokens:
            return sentence(NOTHING, width)
        chosen = [
            f"{'› ' if measure is self.glass.measure else '  '}{measure.name}".ljust(_LABEL) for measure in MEASURES
        ]
        lines = [*self._facts(reply, width), (), *sentence(token_legend.summary(reply), width), ()]
        for measure, name in zip(MEASURES, chosen, strict=True):
            style = "view--title" if measure is self.glass.measure else "view--quiet"
            steps = "  ".join(f"{measure.glyph(level)} {label}" for level, label in enumerate(measure.labels))
            lines.append(((column(name, _LABEL), style), (column(steps, width - _LABEL), style)))
        return lines

    def _facts(self, reply: ReplyTokens, width: int) -> list[Line]:
        index = reply.at
        token = reply.tokens[index]
        data = token.piece[:12].hex(" ").upper() + (" …" if len(token.piece) > 12 else "")
        chance, bits, expected = probability(token), surprise(token), entropy_bits(token)
        time = figures.milliseconds(token.seconds) if token.seconds else "not told"
        unknown = "not told"
        facts = [
            ("token", f"{index + 1} of {len(reply.tokens)}"),
            ("piece", visible_bytes(token.piece) or "no bytes"),
            ("id · bytes", f"{token.token_id} · {data or 'none'}"),
            ("probability", unknown if chance is None else figures.chance(chance)),
            ("surprise", unknown if bits is None else f"{bits:.2f} bits"),
            ("entropy", unknown if expected is None or math.isnan(expected) else f"{expected:.2f} bits expected here"),
            ("rank", unknown if token.rank is None else figures.count(token.rank)),
            ("chosen", reply.origin(index)),
            ("time", time),
        ]
        lines: list[Line] = []
        for label, fact in facts:
            style = "view--mark" if label == "piece" else "view--text"
            lines.append(((label.ljust(_LABEL), "view--quiet"), (column(fact, width - _LABEL), style)))
        return lines
