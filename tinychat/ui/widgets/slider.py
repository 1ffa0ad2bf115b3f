"""A slider for fractions, by keyboard, mouse and number: Textual has none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from textual import events
from textual.binding import Binding

from tinychat.ranges import Range
from tinychat.ui.widgets.line_widget import Line
from tinychat.ui.widgets.setting import LABEL_CELLS, VALUE_CELLS, Setting

COARSE: Final = 10
"""Steps that shift makes at once."""


class Slider(Setting):
    """`temperature  ━━━●──────────   0.80`

    Values lie on a grid of whole steps, so that 0.7 is 14 x 0.05 and never 0.7000000000000001. The bar shows the part
    of the range that is of use; a number beyond it can be typed, and the knob then stands at the end as an arrow.
    """

    HELP = """
**A sampler setting.** What you choose holds from the very next token on, also in the middle of a reply.

* `←` `→` one step, with `Shift` ten
* `Home` `End` the ends of the bar
* type a number and press `Enter`; it may lie beyond the bar
* `r` back to the model's own value
* click or drag with the mouse
"""

    BINDINGS = [
        Binding("left", "step(-1)", "less", tooltip="One step down", id="slider.less"),
        Binding("right", "step(1)", "more", tooltip="One step up", id="slider.more"),
        Binding("shift+left", f"step({-COARSE})", "much less", show=False, tooltip="Ten steps down"),
        Binding("shift+right", f"step({COARSE})", "much more", show=False, tooltip="Ten steps up"),
        Binding("home", "end(0)", "least", show=False, tooltip="The left end of the bar"),
        Binding("end", "end(1)", "most", show=False, tooltip="The right end of the bar"),
    ]

    def __init__(
        self,
        field: str,
        label: str,
        limits: Range,
        *,
        high: float | None = None,
        names: tuple[tuple[float, str], ...] = (),
        id: str | None = None,
    ) -> None:
        """Prepare a slider.

        Args:
            field: The field of `SamplerSettings` it stands for.
            label: What a person calls it.
            limits: The values it may take, and the step.
            high: The right end of the bar, where that is not the end of the range.
            names: (value, word): values that are drawn as a word, such as (0, "greedy").
            id: The widget's id.
        """
        super().__init__(field, label, id=id)
        self.limits = limits
        self.low = limits.low
        self.high = limits.high if high is None else high
        self._names = dict(names)
        self.set_reactive(Setting.value, limits.low)
        self._dragging = False

    def check(self, text: str) -> float:
        """Return the number in a typed text, which may lie beyond the bar but not beyond the range."""
        try:
            value = float(text)
        except ValueError as error:
            raise ValueError(f"{self.label} is {text!r}, but has to be a number.") from error
        self.limits.check(self.label, value)
        return int(value) if self.limits.integer else value

    def describe(self) -> str:
        """Return the value, as a word where it has one."""
        value = self.value or 0.0
        if value in self._names:
            return self._names[value]
        if self.limits.integer:
            return f"{value:.0f}"
        return f"{value:.2f}" if round(value, 2) == value else f"{value:.5g}"

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return label, bar and value."""
        bar = width - LABEL_CELLS - VALUE_CELLS
        if bar < 3:
            return super().compose_lines(width)
        return [((self.drawn_label(), "setting--label"), *self._bar(bar), *self.drawn_value(VALUE_CELLS))]

    def action_step(self, steps: int) -> None:
        """Move by whole steps along the grid; from a value off the grid, to its neighbour first."""
        position = self._position(self.value or 0.0)
        nearest = round(position)
        if abs(position - nearest) < 1e-6:
            index = nearest + steps
        else:
            index = (math.floor(position) if steps > 0 else math.ceil(position)) + steps
        self.choose(self._at(index, beyond=self.value or 0.0))

    def action_end(self, side: int) -> None:
        """Go to an end of the bar."""
        self.choose(self._at(self._last if side else 0))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Begin to drag on the bar, or to type on the value."""
        if LABEL_CELLS <= event.x < self.size.width - VALUE_CELLS:
            self._dragging = True
            self.capture_mouse()
            self._drag(event.x)
        elif event.x >= self.size.width - VALUE_CELLS:
            self.entry = ""
            self.update_lines()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Follow the mouse."""
        if self._dragging:
            self._drag(event.x)

    def on_mouse_up(self) -> None:
        """End the drag."""
        if self._dragging:
            self._dragging = False
            self.release_mouse()

    def _drag(self, x: int) -> None:
        fraction = (x - LABEL_CELLS) / max(1, self.size.width - LABEL_CELLS - VALUE_CELLS - 1)
        self.choose(self._at(round(fraction * self._last)))

    def _bar(self, width: int) -> Line:
        """Return the bar, filled up to the knob from where the setting is off if that is inside, else from the left."""
        if self.disabled:
            return (("─" * width, "setting--rest"),)
        value = self.value or 0.0
        last = width - 1
        knob = round(min(max(self._position(value) / self._last, 0.0), 1.0) * last)
        off = next((at for at, word in self._names.items() if word == "off" and self.low < at < self.high), self.low)
        start = min(knob, round(self._position(off) / self._last * last))
        end = max(knob, round(self._position(off) / self._last * last))
        mark = "▶" if value > self.high else "●"
        return (
            ("─" * start, "setting--rest"),
            ("━" * (knob - start), "setting--fill"),
            (mark, "setting--knob"),
            ("━" * (end - knob), "setting--fill"),
            ("─" * (last - end), "setting--rest"),
        )

    @property
    def _last(self) -> int:
        """The index of the bar's last step."""
        return round((self.high - self.low) / self.limits.step)

    def _position(self, value: float) -> float:
        """Where a value lies, in steps from the left end."""
        return (value - self.low) / self.limits.step

    def _at(self, index: int, beyond: float | None = None) -> float:
        """Return the value of step `index`, kept on the bar (up to `beyond`, where the value lies past its end)."""
        first = 1 if self.limits.above_low else 0
        highest = self._last if beyond is None else max(self._last, math.ceil(self._position(beyond)))
        value = self.low + min(max(index, first), highest) * self.limits.step
        value = min(value, self.limits.high)
        return int(value) if self.limits.integer else round(value, 6)
