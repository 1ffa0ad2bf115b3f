"""The base of everything on the screen that is made of a few short lines: title, gauges, sliders, key bar."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual.geometry import Region, Size
from textual.strip import Strip

from tinychat.ui.foreign_text import one_line
from tinychat.ui.widgets.strip_widget import StripWidget

Span = tuple[str, str]
"""A text, and the component class it is drawn in; an empty name is the widget's own style."""
Line = tuple[Span, ...]


class LineWidget(StripWidget):
    """Draws the lines that `compose_lines` gives, and paints a line again only when it has changed.

    A naive screen halves the engine's speed, because whatever it burns is taken from the matrix products. Here an
    update that changes nothing costs a comparison of tuples, and no update that keeps the number of lines costs a
    layout.

    Everything drawn passes `one_line`, so a subclass may put foreign text into a span.
    """

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: Sequence[Line] = ()
        self._lines_width = -1
        self._strips: dict[int, Strip] = {}

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return what is to be drawn at `width` cells. Longer lines are cropped."""
        raise NotImplementedError

    def update_lines(self) -> None:
        """Compose the lines anew and repaint those that differ."""
        old, width = self._lines, self.size.width
        if width != self._lines_width:
            self._lines_width = -1
            self.refresh(layout=True)
            return
        new = self.compose_lines(width)
        self._lines, self._lines_width = new, width
        if len(new) != len(old):
            self._strips.clear()
            self.refresh(layout=True)
            return
        changed = [y for y, (before, after) in enumerate(zip(old, new, strict=True)) if before != after]
        for y in changed:
            self._strips.pop(y, None)
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines at `width`."""
        self._compose_for(width)
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """Return line `y` as it is drawn."""
        width = self.size.width
        self._compose_for(width)
        if y not in self._strips:
            line = self._lines[y] if y < len(self._lines) else ()
            self._strips[y] = Strip(
                [Segment(one_line(text), self.style_of(name)) for text, name in line if text]
            ).adjust_cell_length(width, self.style_of(""))
        return self._strips[y]

    def notify_style_update(self) -> None:
        """Forget what was drawn in the old theme or state."""
        self._strips.clear()
        super().notify_style_update()

    def _compose_for(self, width: int) -> None:
        if width != self._lines_width:
            self._lines, self._lines_width = self.compose_lines(width), width
            self._strips.clear()


def cells(line: Line) -> int:
    """Return the width of a line as it is drawn, in cells."""
    return sum(cell_len(one_line(text)) for text, _ in line)


def spread(left: Line, right: Line, width: int, fill: Span) -> Line:
    """Put `left` and `right` at the two ends of a line of `width` cells, filled up with `fill` between them.

    Where both don't fit, `right` is left out.
    """
    space = width - cells(left) - cells(right)
    if space < 1:
        right, space = (), width - cells(left)
    text, name = fill
    return (*left, (text * max(0, space), name), *right)


def cut(text: str, width: int) -> str:
    """Return `text` on one line, cut with an ellipsis to at most `width` cells."""
    text = one_line(text)
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…"
