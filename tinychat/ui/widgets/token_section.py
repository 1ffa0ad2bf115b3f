"""The part of a turn that shows its tokens as chips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.segment import Segment
from rich.style import Style

from tinychat.ui.measures import GLYPHS, Measure
from tinychat.ui.reply_tokens import ReplyTokens
from tinychat.ui.token_flow import PlacedChip, TokenFlow
from tinychat.ui.widgets.section import Section

HEAT: Final = tuple(f"heat--{level + 1}" for level in range(len(GLYPHS)))
"""Component class of each level."""


class TokenSection(Section):
    """Chips `word▃`: the ground and the glyph tell the level; drafted tokens are underlined, dictated ones italic."""

    def __init__(self, reply: ReplyTokens, measure: Measure, width: int, style_of: Callable[[str], Style]) -> None:
        super().__init__()
        self._reply = reply
        self._style_of = style_of
        self._styles: dict[tuple[int | None, bool, bool, bool], tuple[Style, Style]] = {}
        """(level, focus, drafted, dictated) to the styles of label and glyph: adding styles costs more than drawing."""
        self._drawn = len(reply.tokens)
        self.flow = TokenFlow(width, measure, reply.tokens)
        self.focus = -1
        """Index of the token that is marked."""
        self.live = False

    def grow(self) -> int:
        """Lay out the tokens that have come since the last call; return the first line that changed."""
        first = self.flow.append(self._reply.tokens[self._drawn :])
        self._drawn = len(self._reply.tokens)
        return first

    def __len__(self) -> int:
        """The number of lines."""
        return len(self.flow.lines)

    def line(self, number: int) -> list[Segment]:
        """Return a line of chips."""
        segments = [segment for chip in self.flow.lines[number] for segment in self._chip(chip)]
        if self.live and number == len(self) - 1:
            segments.append(Segment("▌", self._style_of("text--cursor")))
        return segments

    def _chip(self, chip: PlacedChip) -> tuple[Segment, Segment]:
        dictated = chip.index == self._reply.forced - 1
        key = (chip.level, chip.index == self.focus, chip.drafted, dictated)
        if key not in self._styles:
            self._styles[key] = self._styles_of(*key)
        label, glyph = self._styles[key]
        return Segment(chip.label, label), Segment(chip.glyph, glyph)

    def _styles_of(self, level: int | None, focus: bool, drafted: bool, dictated: bool) -> tuple[Style, Style]:
        if focus:
            style = self._style_of("heat--focus")
            return style, style
        ground = self._style_of("heat--none" if level is None else HEAT[level])
        label = ground + Style(underline=drafted or None, italic=dictated or None)
        return label, ground + Style(color=self._style_of("heat--glyph").color)
