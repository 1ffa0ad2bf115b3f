"""What was drafted and accepted: the rate, and the latest tokens with marks."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.pictures import visible_bytes
from tinychat.ui import figures
from tinychat.ui.acceptance import Acceptance
from tinychat.ui.widgets.line_widget import Line, LineWidget, Span, cells, spread


class SpeculationGauge(LineWidget):
    """Hidden until a reply has drafted something."""

    HELP = """
**Speculation.** The latest tokens of the reply. Those that are underlined had been drafted, and were then drawn as if
they had not: they cost a share of one pass of the model. The others were drawn after a pass of their own.
"""

    COMPONENT_CLASSES = {"speculation--title", "speculation--text", "speculation--accepted"}

    DEFAULT_CSS = """
    SpeculationGauge {
        height: auto;
        display: none;
        & .speculation--title { color: $foreground; text-style: bold; }
        & .speculation--text { color: $quiet; }
        & .speculation--accepted { color: $accent; text-style: underline; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._right = ""
        self._tokens: tuple[tuple[bytes, bool], ...] = ()

    def show(self, acceptance: Acceptance) -> None:
        """Show how it goes."""
        if not acceptance.drafted:
            return
        rate = figures.share(acceptance.accepted, acceptance.drafted)
        self._right = f"{rate} of {figures.count(acceptance.drafted)} accepted"
        self._tokens = tuple(acceptance.recent)
        self.display = True
        self.update_lines()

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the rate, and as many of the latest tokens as have a place."""
        head = spread((("Speculation", "speculation--title"),), ((self._right, "speculation--text"),), width, (" ", ""))
        shown: list[Span] = []
        for data, accepted in reversed(self._tokens):
            span = (visible_bytes(data), f"speculation--{'accepted' if accepted else 'text'}")
            if cells((span, *shown)) > width:
                break
            shown.insert(0, span)
        return [head, tuple(shown)]
