"""The rule above the prompt: what the engine is doing right now, and what the person should know this moment."""

from __future__ import annotations

from collections.abc import Sequence

from textual.timer import Timer

from tinychat.ui.activity import Activity
from tinychat.ui.widgets.line_widget import Line, LineWidget, Span, cells, cut, spread

_HINT_SECONDS = 6.0
_LEAST_LABEL = 16
"""Cells: with less left for it, the label matters more than the detail."""


class StatusLine(LineWidget):
    """`─ prefill ━━━━━━━──── 512 of 900 tokens ──────────── one reply at a time ─`"""

    HELP = "What the engine is doing right now."

    COMPONENT_CLASSES = {
        "status--rule", "status--text", "status--done", "status--open", "status--hint",
    }  # fmt: skip

    DEFAULT_CSS = """
    StatusLine {
        height: 1;
        & .status--rule { color: $rule; }
        & .status--text { color: $quiet; }
        & .status--done { color: $primary; }
        & .status--open { color: $rule; }
        & .status--hint { color: $warning; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._activity = Activity()
        self._hint = ""
        self._clearing: Timer | None = None

    def show(self, activity: Activity) -> None:
        """Show what the engine is doing."""
        if activity != self._activity:
            self._activity = activity
            self.update_lines()

    def hint(self, text: str) -> None:
        """Show a sentence for some seconds."""
        self._hint = text
        if self._clearing is not None:
            self._clearing.stop()
        self._clearing = self.set_timer(_HINT_SECONDS, self.clear_hint) if text else None
        self.update_lines()

    def clear_hint(self) -> None:
        """Take the sentence away."""
        self.hint("")

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the one line. A hint matters more than the activity where both don't fit."""
        hint: Line = ()
        if self._hint:
            hint = ((f" {cut(self._hint, width - 6)} ", "status--hint"), ("─", "status--rule"))
        left = self._drawn(width - cells(hint) - 2)
        return [spread(left, hint or (("─", "status--rule"),), width, ("─", "status--rule"))]

    def _drawn(self, space: int) -> Line:
        """Return label, bar and detail in at most `space` cells; the label is cut first, then the detail left out."""
        doing = self._activity
        start: Line = (("─", "status--rule"),)
        if not doing.label or space < 8:
            return start
        bar: Line = ()
        if doing.fraction is not None:
            size = min(24, space // 4)
            done = round(min(max(doing.fraction, 0.0), 1.0) * size)
            bar = (("━" * done, "status--done"), ("─" * (size - done), "status--open"))
        detail: Line = ((f" {cut(doing.detail, space // 2)} ", "status--text"),) if doing.detail else ()
        rest = (*bar, *detail) if space - cells((*bar, *detail)) >= _LEAST_LABEL else bar
        label: Span = (f" {cut(doing.label, space - cells(rest) - 3)} ", "status--text")
        return (*start, label, *rest)
