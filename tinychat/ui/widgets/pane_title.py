"""The first two lines of a pane: which model it is, how fast it talks, and what tells it from the other."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.ui import figures
from tinychat.ui.widgets.line_widget import Line, LineWidget, cells, cut, spread


class PaneTitle(LineWidget):
    """`─ A smollm2 ───────── 84 tok/s ─`, and below `int4 · temperature 0`; while it loads, how far it is."""

    HELP = "Model, speed of its own steps, form of its weights, and the sampler's settings that the other hasn't."

    COMPONENT_CLASSES = {"pane--name", "pane--side", "pane--detail", "pane--figure", "pane--rule", "pane--done"}

    DEFAULT_CSS = """
    PaneTitle {
        height: 2;
        & .pane--side { color: $accent; text-style: bold; }
        & .pane--name { color: $model; text-style: bold; }
        & .pane--detail { color: $quiet; }
        & .pane--figure { color: $foreground; }
        & .pane--rule { color: $rule; }
        & .pane--done { color: $primary; }
    }
    """

    def __init__(self, side: str, name: str) -> None:
        """Show the name of the side and that of the model."""
        super().__init__()
        self._side = side
        self._model = name
        self._rate = 0.0
        self._details: tuple[str, ...] = ()
        self._fraction: float | None = None

    def show(self, name: str, details: Sequence[str], rate: float, fraction: float | None = None) -> None:
        """Show what there is to know.

        Args:
            name: The model's.
            details: In order of need.
            rate: Tokens a second, 0 while unknown.
            fraction: How much of something is done, None for nothing of that kind.
        """
        self._model, self._details, self._rate, self._fraction = name, tuple(details), rate, fraction
        self.update_lines()

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return both lines."""
        right: Line = (("─", "pane--rule"),)
        if self._rate:
            right = ((f" {figures.rate(self._rate)} ", "pane--figure"), ("─", "pane--rule"))
        name = cut(self._model, max(6, width - cells(right) - 7))
        left: Line = (("─ ", "pane--rule"), (f"{self._side} ", "pane--side"), (f"{name} ", "pane--name"))
        bar: Line = ()
        if self._fraction is not None:
            size = max(4, width // 4)
            done = round(min(max(self._fraction, 0.0), 1.0) * size)
            bar = ((" ", ""), ("━" * done, "pane--done"), ("─" * (size - done), "pane--rule"))
        details = cut(" · ".join(self._details), width - cells(bar) - 3)
        return [
            spread(left, right, width, ("─", "pane--rule")),
            ((f"  {details}", "pane--detail"), *bar),
        ]
