"""How far apart two models are, token after token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tinychat.ui import figures
from tinychat.ui.pair import Pair
from tinychat.ui.pair_words import no_divergence
from tinychat.ui.widgets.line_widget import Line, LineWidget, cells, cut

_BARS: Final = "▁▂▃▄▅▆▇█"
_LEAST: Final = 1e-9
"""Nats under which there is nothing to draw: rounding."""


class DivergenceLine(LineWidget):
    """`KL(A‖B) ▁▁▂▁█  mean 0.041 · most 0.34 nats at token 9`."""

    HELP = """
**KL(A‖B)**, the Kullback-Leibler divergence of the two models' own
distributions of the next token, before the sampler: how many nats worse B's
probabilities are for what A would say (Kullback and Leibler 1951). It is told
for every token as long as both have read the same ids, the first that differs
included. After that each goes on from another text, and the number would
compare texts, not models; so it ends there.
"""

    COMPONENT_CLASSES = {"divergence--label", "divergence--bars", "divergence--figure", "divergence--quiet"}

    DEFAULT_CSS = """
    DivergenceLine {
        height: 1;
        & .divergence--label { color: $foreground; text-style: bold; }
        & .divergence--bars { color: $accent; }
        & .divergence--figure { color: $foreground; }
        & .divergence--quiet { color: $quiet; }
    }
    """

    def __init__(self, pair: Pair, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._pair = pair

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the one line."""
        label: Line = ((" KL(A‖B) ", "divergence--label"),)
        found = self._pair.divergence()
        if found is None:
            why = no_divergence(self._pair) or "how far the models are apart, once both answer"
            return [(*label, (cut(why, width - cells(label) - 1), "divergence--quiet"))]
        mean, most, index = found
        words = f"  mean {nats(mean)} · most {nats(most)} nats, token {index + 1}"
        if most <= _LEAST:
            words = f"  0 over {figures.tokens(len(self._pair.divergences))}: the same weights read the same"
        space = width - cells(label) - len(words) - 1
        bars = "".join(self._bar(each, most) for each in self._pair.divergences[-space:]) if space > 0 else ""
        return [(*label, (bars, "divergence--bars"), (cut(words, width - cells(label)), "divergence--figure"))]

    def _bar(self, value: float, most: float) -> str:
        return _BARS[min(int(value / most * len(_BARS)), len(_BARS) - 1)] if most > _LEAST else _BARS[0]


def nats(value: float) -> str:
    """0.04137 -> "0.041", 0.00000123 -> "1.2e-06"."""
    return f"{value:.2g}"
