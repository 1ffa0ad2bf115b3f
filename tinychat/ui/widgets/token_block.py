"""A text block that can show a reply as its tokens."""

from __future__ import annotations

from textual import events
from textual.message import Message

from tinychat.ui import token_legend
from tinychat.ui.measures import Measure
from tinychat.ui.reply_tokens import ReplyTokens
from tinychat.ui.widgets.section import Section
from tinychat.ui.widgets.text_block import TextBlock
from tinychat.ui.widgets.token_section import TokenSection


class TokenBlock(TextBlock):
    """Chips, their scale and the figures of the reply; a token costs its own line and the lines below the chips."""

    class TokenClicked(Message):
        """A person clicked a token."""

        def __init__(self, block: TokenBlock, index: int) -> None:
            super().__init__()
            self.block = block
            self.index = index

    def __init__(self, label: str, label_style: str, reply: ReplyTokens | None) -> None:
        """Prepare a block; one without tokens stays text."""
        super().__init__(label, label_style)
        self.reply = reply
        self.measure: Measure | None = None
        """What the tokens are coloured by; None while they are not shown."""

    @property
    def as_tokens(self) -> bool:
        """Whether the reply is shown as its tokens."""
        return self.measure is not None

    @property
    def tokens(self) -> TokenSection | None:
        """The chips, if they are what is drawn."""
        if not (self.drawn and self.as_tokens):
            return None
        return next((section for section in self.sections if isinstance(section, TokenSection)), None)

    def show_tokens(self, measure: Measure | None) -> None:
        """Show the reply as tokens, coloured by a measure; None goes back to its text."""
        if self.reply is not None and measure is not self.measure:
            self.measure = measure
            self.rebuild()

    def mark_token(self, index: int) -> int | None:
        """Mark the token in focus; return the row of the block that it stands in, None where no chips are drawn."""
        tokens = self.tokens
        if tokens is None:
            return None
        at, before = self.sections.index(tokens), tokens.focus
        tokens.focus = index
        for number in {tokens.flow.line_of(each) for each in (before, index) if each >= 0 and before != index}:
            self.redraw_line(at, number)
        return self.row_of(at, tokens.flow.line_of(index))

    def grow_tokens(self) -> None:
        """Draw the tokens that have come, the mark on the newest if that is followed, and the figures below them."""
        tokens, reply = self.tokens, self.reply
        if tokens is None or reply is None:
            return  # not drawn yet: the first drawing will have them
        first = tokens.grow()
        if reply.focus is None:
            tokens.focus = reply.at
        at = self.sections.index(tokens)
        self.sections[at + 2] = self.plain(token_legend.summary(reply), tokens.flow.width, "tone--quiet")
        self.redraw(at, first)

    def token_sections(self, width: int, *, live: bool) -> list[Section]:
        """Return chips, scale and figures; none where the reply is shown as text.

        Args:
            width: Cells.
            live: Whether more is coming, which a cursor behind the last token tells.
        """
        reply, measure = self.reply, self.measure
        if reply is None or measure is None:
            return []
        tokens = TokenSection(reply, measure, width - 1, self.style_of)
        tokens.focus, tokens.live = reply.at, live
        return [
            tokens,
            self.plain(token_legend.scale(measure), width, "tone--quiet"),
            self.plain(token_legend.summary(reply), width, "tone--quiet"),
        ]

    def on_click(self, event: events.Click) -> None:
        """Tell which token was clicked."""
        tokens = self.tokens
        section, line = self.place_of(event.y)
        if tokens is not None and self.sections[section] is tokens:
            at = tokens.flow.at(line, event.x - self.indent)
            if at is not None:
                self.post_message(self.TokenClicked(self, at))
