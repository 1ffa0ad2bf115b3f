"""Wrapped text beside a label, drawn line by line: what the transcript is made of."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.selection import Selection
from textual.strip import Strip

from tinychat.ui.foreign_text import pictured
from tinychat.ui.widgets.line_widget import cut
from tinychat.ui.widgets.section import Section
from tinychat.ui.widgets.strip_widget import StripWidget
from tinychat.ui.wrapping import WrappedText

GUTTER: Final = 11
"""Cells of the column that holds the labels."""
STACKED_BELOW: Final = 50
"""A block narrower than this has its label on a line of its own."""
WIDEST: Final = 100
"""Text is not set wider than this, however wide the screen: longer lines are hard to read."""


class TextBlock(StripWidget):
    """A token costs its own line; the lines above cost next to nothing, however many there are.

    Textual's own cache of a widget's lines is dropped whenever the widget grows, which a reply does all the time.
    Styles are the transcript's, and text is not set anew where only the room beside it has changed, so that a long
    conversation takes another theme or the side panel at once.
    """

    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)
    """The block's size. Textual's own asks for a second layout of the screen whenever a layout has changed it."""

    DEFAULT_CSS = """
    TextBlock { height: auto; width: 1fr; margin: 0 0 1 0; }
    """

    def __init__(self, label: str, label_style: str) -> None:
        super().__init__()
        self._label = label
        self._label_style = label_style
        self._form: tuple[int, bool] | None = None
        """What the strips were made for: cells of text a line, and whether the label stands above; None: make them."""
        self.sections: list[Section] = []
        """What the block is made of, as it is drawn."""
        self._strips: list[Strip] = []
        """Lines without the blank cells after their text."""
        self._drawn_in: list[Style] = []
        """The styles that the strips hold."""
        self._stale = False
        """Whether the styles may be others by now; the number of strips is right all the same."""

    def compose_sections(self, width: int) -> list[Section]:
        """Return the content of the block at `width` cells, label not counted."""
        raise NotImplementedError

    def plain(self, text: str, width: int, style: str = "") -> Section:
        """Return foreign text as a section, wrapped."""
        return Section(style, WrappedText(width, pictured(text)))

    def style_of(self, name: str) -> Style:
        """Return the transcript's style of that name."""
        assert isinstance(self.parent, StripWidget)
        return self.parent.style_of(name)

    @property
    def drawn(self) -> bool:
        """Whether the sections are those of the content as it is now."""
        return self._form is not None

    def rebuild(self) -> None:
        """Compose the sections anew: the content is another."""
        self._form = None
        self.refresh(layout=True)

    def extend(self, text: str, below: int = 0) -> None:
        """Add foreign text to the last section that has so many others `below` it; it has to be wrapped text."""
        if not self.drawn:
            return  # the first drawing will have it
        index = len(self.sections) - 1 - below
        wrapped = self.sections[index].wrapped
        assert wrapped is not None
        self.redraw(index, wrapped.append(pictured(text)))

    def redraw(self, index: int, first: int) -> None:
        """Draw section `index` anew from its line `first` on, and all sections below it."""
        before, top = len(self._strips), self.row_of(index, first)
        del self._strips[top:]
        self._draw(index, first)
        for below in range(index + 1, len(self.sections)):
            self._draw(below)
        lines = len(self._strips)
        if self.room_for(lines) == self.room_for(before):
            self.refresh(Region(0, top, self.size.width, lines - top))
        else:
            self.refresh(layout=True)

    def redraw_line(self, index: int, number: int) -> None:
        """Draw one line of section `index` anew."""
        row = self.row_of(index, number)
        self._strips[row] = self._strip(index, number)
        self.refresh(Region(0, row, self.size.width, 1))

    def place_of(self, row: int) -> tuple[int, int]:
        """Return (section, line of it) of a row of the block; the last section takes what lies below."""
        number = row - self._stacked
        for index, section in enumerate(self.sections):
            if number < len(section):
                return index, number
            number -= len(section)
        return len(self.sections) - 1, number

    # Drawing

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines at `width`."""
        self._build(width)
        return self.room_for(len(self._strips))

    def room_for(self, lines: int) -> int:
        """Return the height that so many lines are given."""
        return lines

    def render_line(self, y: int) -> Strip:
        """Return line `y` as it is drawn."""
        if self.parent is None:
            return Strip.blank(self.size.width)  # taken off the transcript, and still in the layout for a moment
        self._build(self.size.width)
        width, style = self.size.width, self.style_of("")
        if y >= len(self._strips):
            return Strip.blank(width, style)
        strip = self._strips[y].adjust_cell_length(width, style)
        selection = self.text_selection
        return strip if selection is None else self._selected(strip, y, selection)

    def notify_style_update(self) -> None:
        """Draw anew, in the new theme."""
        self._stale = True
        super().notify_style_update()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text, without labels."""
        lines = [section.line(number) for section in self.sections for number in range(len(section))]
        text = "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)
        return (selection.extract(text), "\n") if text else None

    def selection_updated(self, selection: Selection | None) -> None:
        """Draw the selection."""
        self.refresh()

    def _build(self, width: int) -> None:
        """Compose and draw everything, if the form is another or the styles are."""
        stacked = width < STACKED_BELOW and bool(self._label)
        form = (max(1, min(WIDEST, width - (1 if stacked else GUTTER) - 1)), stacked)
        if form == self._form and not self._stale:
            return
        assert self.parent is not None
        styles = [self.style_of(name) for name in ("", *sorted(self.parent.COMPONENT_CLASSES))]
        self._stale = False
        if form == self._form and styles == self._drawn_in:
            return
        self._form, self._drawn_in = form, styles
        self.sections = self.compose_sections(form[0])
        self._strips = []
        if stacked:
            self._strips.append(Strip([Segment(cut(self._label, width), self.style_of(self._label_style))]))
        for index in range(len(self.sections)):
            self._draw(index)

    def _draw(self, index: int, first: int = 0) -> None:
        """Append the strips of section `index`, from its line `first` on."""
        for number in range(first, len(self.sections[index])):
            self._strips.append(self._strip(index, number))

    def _strip(self, index: int, number: int) -> Strip:
        """Return line `number` of section `index` with its label or the room beside it."""
        section = self.sections[index]
        style, gutter = self.style_of(section.style), self.indent
        place = sum(map(len, self.sections[:index])) + number
        label = "" if self._stacked or place else cut(self._label, gutter - 1)
        head = [Segment(label, self.style_of(self._label_style))] if label else []
        head.append(Segment(" " * (gutter - cell_len(label)), style))
        text = [Segment(s.text, style + s.style if s.style else style) for s in section.line(number)]
        if index == len(self.sections) - 1 and number == len(section) - 1:
            text += self.tail()
        # The text knows its place, so that it can be selected with the mouse; the label doesn't, so that it can't.
        return Strip([*head, *Strip(text).apply_offsets(0, place)])

    def row_of(self, index: int, number: int) -> int:
        """Return the row of the block that line `number` of section `index` stands in."""
        return self._stacked + sum(map(len, self.sections[:index])) + number

    def tail(self) -> list[Segment]:
        """Return what stands after the last character."""
        return []

    @property
    def _stacked(self) -> bool:
        """Whether the label stands above the text."""
        return self._form is not None and self._form[1]

    @property
    def indent(self) -> int:
        """Cells before the text."""
        return 1 if self._stacked or not self._label else GUTTER

    def _selected(self, strip: Strip, y: int, selection: Selection) -> Strip:
        """Return a strip with its selected part highlighted."""
        span = selection.get_span(y - self._stacked)
        if span is None or y < self._stacked:
            return strip
        gutter = self.indent
        start = gutter + span[0]
        end = strip.cell_length if span[1] < 0 else gutter + span[1]
        if not start < end <= strip.cell_length:
            return strip
        style = self.screen.get_component_rich_style("screen--selection")
        before, chosen, after = strip.divide([start, end, strip.cell_length])
        return Strip.join([before, Strip(Segment.apply_style(chosen, None, style)), after])
