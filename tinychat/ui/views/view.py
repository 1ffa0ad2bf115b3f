"""The base of every view of the glass box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.cells import cell_len
from textual import events
from textual.binding import Binding

from tinychat.ui.glass import Glass
from tinychat.ui.reply_tokens import ReplyTokens
from tinychat.ui.widgets.line_widget import Line, LineWidget, cut
from tinychat.ui.widgets.token_keys import TOKEN_KEYS
from tinychat.ui.widgets.token_section import HEAT
from tinychat.ui.wrapping import WrappedText

NOTHING: Final = "Nothing to look at yet: ask something."
PLAYING: Final = "Tokens are coming: choose one (←), or have the reply wait (F7)."
"""Of a view that the model is run again for."""


class View(LineWidget, can_focus=True):
    """A head that stays, and rows below it that scroll with the row in focus. Drawn line by line, like every gauge."""

    NAME: ClassVar[str] = ""
    """As `run --view` takes it."""
    BINDING_GROUP_TITLE = "View"

    BINDINGS = [
        *TOKEN_KEYS,
        Binding("up", "move(-1)", "up", show=False, tooltip="One row up"),
        Binding("down", "move(1)", "down", show=False, tooltip="One row down"),
        Binding("pageup", "page(-1)", "page up", show=False, tooltip="A page of rows up"),
        Binding("pagedown", "page(1)", "page down", show=False, tooltip="A page of rows down"),
        Binding("question_mark", "screen.help", "what is this?", show=False, tooltip="What this view shows"),
    ]

    COMPONENT_CLASSES = {
        "view--title", "view--text", "view--quiet", "view--warning", "view--mark", "view--row", "view--bar",
        "view--lost", *HEAT,
    }  # fmt: skip

    DEFAULT_CSS = """
    View {
        height: 1fr;
        display: none;
        & .view--title { color: $foreground; text-style: bold; }
        & .view--text { color: $foreground; }
        & .view--quiet { color: $quiet; }
        & .view--warning { color: $warning; }
        & .view--mark { color: $model; text-style: bold; }
        & .view--row { color: $chip-cursor-text; background: $chip-cursor; }
        & .view--bar { color: $primary; }
        & .view--lost { color: $quiet; text-style: strike; }
        & .heat--1 { color: $heat-text; background: $heat-1; }
        & .heat--2 { color: $heat-text; background: $heat-2; }
        & .heat--3 { color: $heat-text; background: $heat-3; }
        & .heat--4 { color: $heat-text; background: $heat-4; }
        & .heat--5 { color: $heat-text; background: $heat-5; }
    }
    """

    def __init__(self, glass: Glass) -> None:
        super().__init__(id=f"view-{self.NAME}")
        self.glass = glass
        self.row = 0
        """The row in focus."""
        self._top = 0
        self._rows = 0
        self._space = 1
        self.head_lines = 0
        """Lines that the head takes."""

    def head(self, width: int) -> Sequence[Line]:
        """Return the lines that stay."""
        raise NotImplementedError

    def body(self, width: int) -> Sequence[Line]:
        """Return the rows."""
        return ()

    def foot(self, width: int) -> Sequence[Line]:
        """Return the lines that stay below the rows; called after `head`."""
        return ()

    @property
    def reply(self) -> ReplyTokens | None:
        """The tokens of the reply looked at."""
        return self.glass.reply

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return as many lines as there is room for, so that no update costs a layout."""
        height = max(1, self.size.height)
        head = list(self.head(width))[:height]
        self.head_lines = len(head)
        foot = list(self.foot(width))[: height - len(head)]
        room = height - len(head) - len(foot)
        self._space = max(1, room)
        body = self.body(width)
        self._rows = len(body)
        self.row = min(max(self.row, 0), max(0, self._rows - 1))
        self._top = min(max(self._top, self.row - self._space + 1), self.row, max(0, self._rows - self._space))
        shown = list(body[self._top : self._top + room])
        return [*head, *shown, *[()] * (room - len(shown)), *foot]

    def on_resize(self, _event: events.Resize) -> None:
        """Use the room there is."""
        self.update_lines()

    def action_move(self, rows: int) -> None:
        """Go to another row."""
        self.row = min(max(self.row + rows, 0), max(0, self._rows - 1))
        self.update_lines()

    def scroll_rows(self, rows: int) -> None:
        """Scroll at once, where no row is shown to be in focus: the row is the last one in view, or the first."""
        self.row = self._top + rows + (self._space - 1 if rows > 0 else 0)
        self.update_lines()

    def action_page(self, pages: int) -> None:
        """Go a page further."""
        self.action_move(pages * max(1, self._space - 1))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll."""
        event.stop()
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll."""
        event.stop()
        self.action_move(-3)

    def row_at(self, y: int) -> int | None:
        """Return the row drawn at line `y` of the widget, None where there is none."""
        row = y - self.head_lines + self._top
        return row if self._top <= row < min(self._rows, self._top + self._space) else None


def sentence(text: str, width: int, style: str = "view--quiet") -> list[Line]:
    """Return a text as lines of at most `width` cells."""
    return [((line.rstrip(), style),) for line in WrappedText(width, text).lines]


def column(text: str, width: int, *, right: bool = False) -> str:
    """Return a text cut or filled up to `width` cells."""
    shown = cut(text, width)
    fill = " " * (width - cell_len(shown))
    return fill + shown if right else shown + fill
