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
_UNDERLINE: Final = Style(underline=True)
_ITALIC: Final = Style(italic=True)


class TokenSection(Section):
    """Chips `word▃`: the ground and the glyph tell the level; drafted tokens are underlined, dictated ones italic."""

    def __init__(self, reply: ReplyTokens, measure: Measure, width: int, style_of: Callable[[str], Style]) -> None:
        super().__init__()
        self._reply = reply
        self._style_of = style_of
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

    def _chip(self, chip: PlacedChip) -> list[Segment]:
        name = "heat--none" if chip.level is None else HEAT[chip.level]
        if chip.index == self.focus:
            style = self._style_of("heat--focus")
            return [Segment(chip.label, style), Segment(chip.glyph, style)]
        ground = self._style_of(name)
        style = ground
        if chip.drafted:
            style += _UNDERLINE
        if chip.index == self._reply.forced - 1:
            style += _ITALIC
        glyph = ground + Style(color=self._style_of("heat--glyph").color)
        return [Segment(chip.label, style), Segment(chip.glyph, glyph)]
