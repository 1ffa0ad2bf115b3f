"""The base of whatever is drawn often: a widget that hands out strips of its own."""

from __future__ import annotations

from typing import Any

from rich.style import Style
from textual.color import Color
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class StripWidget(Widget):
    """Draws `render_line` and nothing around it: no border, padding, tint or opacity.

    Every paint asks every visible widget for its lines, changed or not, and Textual's way from styles to strips costs a
    widget 60 to 90 microseconds each time. With thirty widgets and ten paints a second that alone is 2 % of a core. A
    subclass keeps its strips and returns the same objects again, so that all that was computed from them is kept too,
    down to their escape sequences.
    """

    def __init__(self, *children: Widget, **options: Any) -> None:
        super().__init__(*children, **options)
        self._component: dict[str, Style] = {}
        self._ground: Color | None = None

    def style_of(self, name: str) -> Style:
        """Return the style of a component class; the widget's own for an empty name."""
        if name not in self._component:
            self._component[name] = self.get_component_rich_style(name) if name else self.rich_style
        return self._component[name]

    def render_line(self, y: int) -> Strip:
        """Return line `y` as it is drawn; a blank one here, which is what a container needs."""
        return Strip.blank(self.size.width, self.style_of(""))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines inside `crop`."""
        if self._ground is None:
            self._ground = self.background_colors[1]
        strips = [self.render_line(y) for y in crop.line_range]
        for line_filter in self.get_line_filters():
            strips = [strip.apply_filter(line_filter, self._ground) for strip in strips]
        if crop.column_span != (0, self.size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def notify_style_update(self) -> None:
        """Forget the old theme or state."""
        self._component.clear()
        self._ground = None
        super().notify_style_update()
