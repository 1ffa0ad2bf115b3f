"""A text area that is safe to paste anything into."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from rich.text import Text
from textual import events
from textual.widgets import TextArea

from tinychat.ui.graphemes import character_starts
from tinychat.ui.stand_ins import StandIns

FOLD_CHARACTERS: Final = 4_000
FOLD_LINES: Final = 100
"""A paste beyond either is folded into one character: Textual's text area lays a long line out anew at every key."""


class Editor(TextArea):
    """A text area whose document may be drawn, and whose `draft` is the exact text.

    `draft` and never `text` is what was typed: `text` holds stand-ins.
    """

    DEFAULT_CSS = """
    Editor {
        height: auto;
        border: none;
        padding: 0;
        background: $background;
        color: $foreground;
        scrollbar-size-vertical: 1;
        &:focus { border: none; }
        &:dark .text-area--cursor, &:light .text-area--cursor, &:ansi .text-area--cursor {
            color: $foreground;
            background: $background;
            text-style: reverse;
        }
        & .text-area--cursor-line { background: transparent; }
        & .text-area--placeholder { color: $quiet; }
    }
    """

    def __init__(self, draft: str = "", *, placeholder: str = "", id: str | None = None) -> None:
        """Begin with `draft`."""
        self._stand_ins = StandIns()
        super().__init__(
            self._stand_ins.encode(with_newlines(draft)),
            compact=True,
            highlight_cursor_line=False,
            placeholder=placeholder,
            id=id,
        )
        self.cursor_blink = False
        self.match_cursor_bracket = False

    @property
    def draft(self) -> str:
        """What was typed and pasted, folded texts at full length."""
        return self._stand_ins.decode(self.text)

    @property
    def folds(self) -> list[str]:
        """The folded texts in the draft, in order."""
        return self._stand_ins.folds(self.text)

    @property
    def cursor_byte(self) -> int:
        """Where the cursor stands, as an offset into the draft's UTF-8 bytes."""
        before = self._stand_ins.decode(self.get_text_range((0, 0), self.cursor_location))
        return len(before.encode("utf-8", "surrogatepass"))

    def put(self, text: str) -> None:
        """Replace the selection with a text from outside; a long one is folded."""
        text = with_newlines(text)
        crowded = len(text) + len(self.text) > 4 * FOLD_CHARACTERS
        if crowded or len(text) > FOLD_CHARACTERS or text.count("\n") > FOLD_LINES:
            encoded = self._stand_ins.fold(text)
        else:
            encoded = self._stand_ins.encode(text)
        self.replace(encoded, *self.selection, maintain_selection_offset=False)

    def clear_draft(self) -> None:
        """Empty the draft; undo brings it back."""
        self.history.checkpoint()
        self.clear()

    def get_cursor_left_location(self) -> tuple[int, int]:
        """Return where the character before the cursor begins; Textual's own goes into the middle of an emoji."""
        row, column = self.cursor_location
        starts = character_starts(self.document.get_line(row))
        return (row, starts[bisect_left(starts, column) - 1]) if column else super().get_cursor_left_location()

    def get_cursor_right_location(self) -> tuple[int, int]:
        """Return where the character after the cursor ends."""
        row, column = self.cursor_location
        line = self.document.get_line(row)
        ends = [*character_starts(line), len(line)]
        return (row, ends[bisect_right(ends, column)]) if column < len(line) else super().get_cursor_right_location()

    def get_line(self, line_index: int) -> Text:
        """Return a line as it may be drawn."""
        return Text(self._stand_ins.drawn(self.document.get_line(line_index)), end="", no_wrap=True)

    async def _on_paste(self, event: events.Paste) -> None:
        """Paste; a paste never sends."""
        event.stop()
        event.prevent_default()
        if not self.read_only:
            self.put(event.text)

    def action_paste(self) -> None:
        """Paste what was copied inside the app."""
        if not self.read_only:
            self.put(self.app.clipboard)

    def action_copy(self) -> None:
        """Copy the selection as it was typed."""
        if self.selected_text:
            self.app.copy_to_clipboard(self._stand_ins.decode(self.selected_text))

    def action_cut(self) -> None:
        """Cut the selection as it was typed."""
        if self.selected_text:
            self.action_copy()
            self.replace("", *self.selection, maintain_selection_offset=False)


def with_newlines(text: str) -> str:
    """Return `text` with newlines for line endings: terminals paste them as `\\r`, files hold `\\r\\n`."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
