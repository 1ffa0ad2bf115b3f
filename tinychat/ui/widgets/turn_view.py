"""One turn of the transcript."""

from __future__ import annotations

import logging
from typing import Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message

from tinychat.chats import Turn
from tinychat.ui import figures
from tinychat.ui.remarks import Remark
from tinychat.ui.reply_tokens import ReplyTokens
from tinychat.ui.widgets.section import Section
from tinychat.ui.widgets.token_block import TokenBlock

MARKDOWN_CHARACTERS: Final = 100_000
"""A reply longer than this stays raw: laying it out would be felt."""
_GROWTH: Final = 6
"""Lines that a reply being said grows by at once, on a screen that is high enough."""
_LOG: Final = logging.getLogger(__name__)


class TurnView(TokenBlock):
    """What one side said: raw while it is being said, then Markdown or raw, with the thinking folded above it.

    A reply can be shown as its tokens instead, at any time.
    """

    class Clicked(Message):
        """A person clicked a turn."""

        def __init__(self, view: TurnView) -> None:
            super().__init__()
            self.view = view

    def __init__(
        self,
        turn: Turn,
        label: str,
        *,
        markdown: bool = False,
        trim: bool = False,
        live: bool = False,
        reply: ReplyTokens | None = None,
        remarks: list[Remark] | None = None,
    ) -> None:
        """Show a turn.

        Args:
            turn: The turn; of a reply being made, its empty beginning.
            label: Who speaks.
            markdown: Whether it is drawn as Markdown once it is complete.
            trim: Whether the one space that a base model's reply begins with is left out of the drawing.
            live: Whether it is still being said.
            reply: The tokens of a reply.
            remarks: What is said below the turn; what comes is added to this very list.
        """
        super().__init__(label, "label--person" if turn.role == "user" else "label--model", reply)
        self.turn = turn
        self.markdown = markdown
        self.live = live
        self.thinking_open = False
        self._trim = trim
        self._text: list[str] = [turn.text]
        self._thinking: list[str] = [turn.thinking]
        self.remarks = [] if remarks is None else remarks
        """What is said below the turn."""
        self.heading = ""
        """What is said above a reply that has other versions."""

    @property
    def text(self) -> str:
        """What was said so far, raw."""
        return "".join(self._text)

    @property
    def thinking(self) -> str:
        """What was thought so far, raw."""
        return "".join(self._thinking)

    def say(self, text: str, thinking: str) -> None:
        """Add what the model said or thought since the last call."""
        began_answer = bool(text) and not self.text
        began_thinking = bool(thinking) and not self.thinking
        self._text.append(text)
        self._thinking.append(thinking)
        if self.as_tokens:
            self.grow_tokens()
        elif began_answer or began_thinking or (thinking and not self.text):
            # Sections come and go, or the folded head counts on: rare, and short at that time.
            if thinking and self.thinking_open and not began_thinking and not text:
                self.extend(thinking, below=len(self.remarks))
            else:
                self.rebuild()
        elif text:
            self.extend(text, below=len(self.remarks))

    def finish(self, turn: Turn, remarks: list[Remark]) -> None:
        """Show the turn's final truth in place of what was streamed."""
        self.turn = turn
        self.live = False
        self._text, self._thinking = [turn.text], [turn.thinking]
        self.remarks += remarks
        self.rebuild()

    def remark(self, *remarks: Remark) -> None:
        """Add sentences below the turn."""
        self.remarks += remarks
        self.rebuild()

    def toggle_markdown(self) -> None:
        """Change between Markdown and what was really said."""
        self.markdown = not self.markdown
        self.rebuild()

    def show_raw(self, trim: bool) -> None:
        """Show a base model's reply, as `__init__` has it: such a model knows no Markdown."""
        self.markdown, self._trim = False, trim and self.turn.role == "assistant"
        self.rebuild()

    def toggle_thinking(self) -> None:
        """Fold or unfold the thinking."""
        self.thinking_open = not self.thinking_open
        self.rebuild()

    def set_heading(self, heading: str) -> None:
        """Say something above the turn."""
        if heading != self.heading:
            self.heading = heading
            self.rebuild()

    def set_current(self, current: bool) -> None:
        """Mark the turn as the one that keys act on."""
        role = "label--person" if self.turn.role == "user" else "label--model"
        self._label_style = "label--chosen" if current else role
        self.rebuild()

    def room_for(self, lines: int) -> int:
        """Let a reply that is being said grow by several lines at once.

        A line more is a layout and a repaint of the whole transcript; a line within the room there is costs itself. And
        text that stands still while it is read is easier to read.
        """
        step = max(1, min(_GROWTH, self.app.size.height // 8)) if self.live else 1
        return -(-lines // step) * step

    def compose_sections(self, width: int) -> list[Section]:
        """Return heading, thinking, text or tokens, and remarks."""
        sections = [self.plain(self.heading, width, "tone--quiet")] if self.heading else []
        if self.as_tokens:
            sections += self.token_sections(width, live=self.live)
        else:
            sections += self._thinking_sections(width)
            if self.text or not self.thinking or not self.live:
                sections.append(self._answer(width))
        return sections + [self.plain(remark.text, width, f"tone--{remark.tone}") for remark in self.remarks]

    def tail(self) -> list[Segment]:
        """Return the cursor of a reply that is being said."""
        return [Segment("▌", self.style_of("text--cursor"))] if self.live and not self.as_tokens else []

    def on_click(self, event: events.Click) -> None:
        """Tell that the turn was clicked; a click on the thinking's head folds or unfolds it."""
        if self.thinking and not self.as_tokens and self.place_of(event.y) == (int(bool(self.heading)), 0):
            self.toggle_thinking()
        self.post_message(self.Clicked(self))

    def _thinking_sections(self, width: int) -> list[Section]:
        thinking = self.thinking
        if not thinking:
            return []
        state = "thinking" if self.live and not self.text else "thought"
        mark = "▾" if self.thinking_open else "▸"
        head = self.plain(f"{mark} {state}, {figures.words(len(thinking.split()))} (Ctrl+T)", width, "tone--quiet")
        return [head, self.plain(thinking.strip("\n"), width, "text--thinking")] if self.thinking_open else [head]

    def _answer(self, width: int) -> Section:
        text = self.text
        if self._trim:
            text = text.removeprefix(" ")
        if not self.markdown or self.live or len(text) > MARKDOWN_CHARACTERS:
            return self.plain(text, max(1, width - 1) if self.live else width)
        from tinychat.ui.markdown import markdown_lines  # 100 ms, and not before the first reply

        try:
            lines = markdown_lines(text, width, self._markdown_style)
        except Exception:  # a reply can be anything, and no renderer's flaw may cost the conversation
            _LOG.exception("A reply could not be laid out as Markdown.")
            self.markdown = False
            self.remarks.append(Remark("Shown raw: this Markdown could not be laid out.", "warning"))
            return self.plain(text, width)
        return Section(rendered=lines)

    def _markdown_style(self, part: str) -> Style:
        return self.style_of("" if part == "text" else f"markdown--{part}")
