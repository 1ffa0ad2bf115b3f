"""The first line of the screen: which model this is, and how fast it talks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len

from tinychat.protocol import ModelInfo
from tinychat.ui import figures
from tinychat.ui.foreign_text import one_line
from tinychat.ui.widgets.line_widget import Line, LineWidget, Span, cells, cut, spread

_NAME_CELLS: Final = 16
"""What a long name keeps at least where the figures need the rest."""


class TitleBar(LineWidget):
    """`smollm2 · Llama · 135 M · int4 ──── 212 tok/s · first token 41 ms`; what doesn't fit is left out."""

    HELP = "Name, family, parameters and weight format of the model; tokens a second and time to the first token."

    COMPONENT_CLASSES = {"title--name", "title--detail", "title--figure", "title--rule"}

    DEFAULT_CSS = """
    TitleBar {
        height: 1;
        background: $background;
        & .title--name { color: $model; text-style: bold; }
        & .title--detail { color: $quiet; }
        & .title--figure { color: $foreground; }
        & .title--rule { color: $rule; }
    }
    """

    def __init__(self, name: str, *, id: str | None = None) -> None:
        """Show `name` while nothing more is known of the model."""
        super().__init__(id=id)
        self._model = name
        self._details: tuple[str, ...] = ()
        self._rate = 0.0
        self._first_token: str = ""

    def show_model(self, info: ModelInfo) -> None:
        """Show what was loaded."""
        self._model = info.name
        details = [info.architecture, figures.parameters(info.parameters), info.dtype]
        if info.format == "base":
            details.append("base model: continues a transcript")
        self._details = tuple(details)
        self.tooltip = None
        self.update_lines()

    def show_speed(self, rate: float, first_token_seconds: float | None, *, final: bool) -> None:
        """Show tokens a second and time to the first token.

        Args:
            rate: Tokens a second, 0 while unknown.
            first_token_seconds: None while unknown.
            final: Whether the figures are the engine's own; those seen from the screen are marked as approximate.
        """
        self._rate = rate
        self._first_token = ""
        if first_token_seconds is not None:
            self._first_token = f"first token {'' if final else '≈'}{figures.duration(first_token_seconds)}"
        self.update_lines()

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the one line."""
        figures_shown = [figures.rate(self._rate)] if self._rate else []
        if self._first_token:
            figures_shown.append(self._first_token)
        room = min(cell_len(one_line(self._model)), max(_NAME_CELLS, width // 3))
        right: list[Span] = []
        for index, text in enumerate(figures_shown):
            more: list[Span] = [(" · " if index else " ", "title--detail"), (text, "title--figure")]
            if room + cells((*right, *more)) + 6 <= width:
                right += more
        name = cut(self._model, max(8, width - cells(tuple(right)) - 6))
        left: list[Span] = [("─ ", "title--rule"), (name, "title--name")]
        for text in self._details:
            more = [(" · ", "title--detail"), (text, "title--detail")]
            if cells((*left, *more, *right)) + 4 > width:
                break
            left += more
        end: Line = (*right, (" ─", "title--rule")) if right else (("─", "title--rule"),)
        return [spread((*left, (" ", "")), end, width, ("─", "title--rule"))]
