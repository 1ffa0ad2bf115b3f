"""The view into the layers: what each did at the token in focus."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from tinychat.pictures import visible_bytes
from tinychat.protocol import LayerStatistics, Probed, Spread
from tinychat.ui import heat
from tinychat.ui.views.view import NOTHING, View, column, sentence
from tinychat.ui.widgets.gauge import share_bar
from tinychat.ui.widgets.line_widget import Line, Span, cut, spread

_ROOMY: Final = 16
"""Lines from which on the details of the layer in focus have a place."""
_NUMBER: Final = 9
_BAR: Final = 6
_MS: Final = 8


class LayersView(View):
    """A row a layer; the details of the one in focus stand above."""

    NAME = "layers"

    HELP = """
**Layers.** What each layer did at the token in focus, in the pass that computed it: the Euclidean norm of the residual
stream after the layer, the standard deviation of what attention and MLP added to it, the entropy of each head's
attention in nats (0: it looks at one token; the logarithm of their number: at all alike), and the milliseconds of both
parts. `↑` `↓` choose a layer, whose least, greatest and mean values and heads are spelt out. A norm that jumps or a
head that never moves is worth a look. Attention, residual stream and norms: Vaswani et al. 2017, arXiv:1706.03762. The
names are those of TransformerLens: hook_resid_post, hook_attn_out, hook_mlp_out, hook_pattern.
"""

    def head(self, width: int) -> Sequence[Line]:
        """Return the title, the layer in focus, and the names of the columns."""
        reply = self.reply
        if reply is None or not reply.tokens:
            return sentence(NOTHING, width)
        probed = self._probed
        if probed is None:
            problem = self.glass.inspected
            if problem is not None and (problem.turn_id, problem.index) == (reply.turn_id, reply.at):
                return sentence(problem.problem, width, "view--warning")
            return sentence("Asking the engine ...", width)
        piece = visible_bytes(reply.tokens[probed.index].piece) if probed.index < len(reply.tokens) else ""
        total = sum(layer.attention_ms + layer.mlp_ms for layer in probed.layers)
        right = f"{total:.1f} ms{' · recomputed' if probed.recomputed else ''}"
        title = cut(f"token {probed.index + 1} of {len(reply.tokens)}: {piece}", max(8, width - len(right) - 1))
        lines = [spread(((title, "view--title"),), ((right, "view--quiet"),), width, (" ", ""))]
        if self.size.height >= _ROOMY and self.row < len(probed.layers):
            lines += [*_details(self.row, probed.layers[self.row], width), ()]
        most = _most(entropy for layer in probed.layers for entropy in layer.head_entropy)
        norm, attention, mlp = column("norm", _NUMBER + _BAR), column("attn out", _NUMBER), column("mlp out", _NUMBER)
        names = f"  layer {norm}{attention}{mlp}{column('ms', _MS)}heads: █ {most:.2f} nats"
        return [*lines, ((cut(names, width), "view--quiet"),)]

    def body(self, width: int) -> Sequence[Line]:
        """Return a row a layer."""
        probed = self._probed
        if probed is None:
            return ()
        norm = _most(layer.residual_norm for layer in probed.layers)
        entropy = _most(entropy for layer in probed.layers for entropy in layer.head_entropy)
        return [
            _row(number, layer, norm, entropy, width, here=number == self.row)
            for number, layer in enumerate(probed.layers)
        ]

    @property
    def _probed(self) -> Probed | None:
        """What to draw: the statistics of the token in focus, or the newest there are while the newest is followed."""
        reply = self.reply
        if reply is None:
            return None
        if reply.at in reply.probes:
            return reply.probes[reply.at]
        followed = reply.focus is None and reply.finished is None and reply.probes
        return next(reversed(reply.probes.values())) if followed else None


def _row(number: int, layer: LayerStatistics, norm: float, entropy: float, width: int, *, here: bool) -> Line:
    """Return one layer."""
    style = "view--title" if here else "view--text"
    share = layer.residual_norm / norm if norm and math.isfinite(layer.residual_norm) else 0.0
    ms = f"{layer.attention_ms + layer.mlp_ms:.2f}"
    start: list[Span] = [
        (f"{'›' if here else ' '} {number:>5} ", style),
        _finite(f"{layer.residual_norm:<{_NUMBER}.4g}", (layer.residual_norm,), style),
        (f"{share_bar(share, _BAR - 1)} ", "view--bar"),
        _finite(f"{layer.attn_out.deviation:<{_NUMBER}.3g}", (layer.attn_out.deviation,), style),
        _finite(f"{layer.mlp_out.deviation:<{_NUMBER}.3g}", (layer.mlp_out.deviation,), style),
        (column(ms, _MS), style),
    ]
    room = width - 8 - 3 * _NUMBER - _BAR - _MS
    heads = layer.head_entropy
    shown = heads if len(heads) <= room else heads[: max(0, room - 1)]
    return (*start, *heat.strip(shown, entropy), *((("…", "view--quiet"),) if len(shown) < len(heads) else ()))


def _details(number: int, layer: LayerStatistics, width: int) -> list[Line]:
    """Spell out the layer in focus."""
    heads = "  ".join(f"{head}:{entropy:.2f}" for head, entropy in enumerate(layer.head_entropy))
    texts = [
        (f"layer {number}, residual norm {layer.residual_norm:.6g}", (layer.residual_norm,)),
        (f"attn out {_spread(layer.attn_out)}, {layer.attention_ms:.3f} ms", _numbers(layer.attn_out)),
        (f"mlp out  {_spread(layer.mlp_out)}, {layer.mlp_ms:.3f} ms", _numbers(layer.mlp_out)),
    ]
    lines: list[Line] = [(_finite(cut(text, width), numbers, "view--text"),) for text, numbers in texts]
    return [*lines, *sentence(f"heads    {heads}", width, "view--text")[:3]]


def _spread(values: Spread) -> str:
    return f"{values.least:.3g} to {values.most:.3g}, mean {values.mean:.3g}, std {values.deviation:.3g}"


def _numbers(values: Spread) -> tuple[float, ...]:
    return values.least, values.most, values.mean, values.deviation


def _finite(text: str, numbers: tuple[float, ...], style: str) -> Span:
    """Return a span, as a warning where a number is none."""
    return (text, style if all(map(math.isfinite, numbers)) else "view--warning")


def _most(values: Iterable[float]) -> float:
    """Return the greatest finite value, 0 where there is none."""
    return max((value for value in values if math.isfinite(value)), default=0.0)
