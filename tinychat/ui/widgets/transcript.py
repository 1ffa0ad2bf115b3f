"""The conversation, from its first turn to the one being said."""

from __future__ import annotations

from typing import TypeGuard

from textual import events, on
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive
from textual.widget import Widget

from tinychat.ui.widgets.strip_widget import StripWidget
from tinychat.ui.widgets.text_block import TextBlock
from tinychat.ui.widgets.token_keys import TOKEN_KEYS
from tinychat.ui.widgets.token_section import HEAT
from tinychat.ui.widgets.turn_view import TurnView

_NEAR_END = 2
"""Lines: a person who scrolls down to as near as this wants to follow, though more text has come meanwhile."""


class Transcript(VerticalScroll, StripWidget):
    """Follows the end until a person scrolls up, and again once they are back at the end.

    Textual's anchor does the following, in the same layout that makes the text grow. What it lacks is done here: a
    person who scrolls to the end of a growing text arrives just above it and is taken along, and one who is there and
    scrolls on stays there.

    The scrollbar is there when it says something: away from the end, and under the mouse.
    """

    HELP = """
**The transcript.** `PgUp` and `PgDn` scroll, `Ctrl+End` goes back to the end and follows it.
`Ctrl+↑` and `Ctrl+↓` choose a reply for the keys that act on one: copy, raw or Markdown, tokens, thinking.
Shown as tokens, `←` `→` go from one to the next, `↑` `↓` from line to line, and `c` colours them by another measure;
else `←` `→` go through the versions of the reply.
"""

    BINDINGS = [
        *TOKEN_KEYS,
        Binding("left", "screen.version(-1)", "version", show=False, tooltip="The version before"),
        Binding("right", "screen.version(1)", "version", show=False, tooltip="The version after"),
        Binding("home", "scroll_home", "to the top", show=False, tooltip="To the top"),
        Binding("end", "scroll_end", "to the end", show=False, tooltip="To the end"),
        Binding("up", "screen.focus_line(-1)", "line above", show=False, tooltip="The token above"),
        Binding("up", "scroll_up", "scroll up", show=False, tooltip="Scroll up"),
        Binding("down", "screen.focus_line(1)", "line below", show=False, tooltip="The token below"),
        Binding("down", "scroll_down", "scroll down", show=False, tooltip="Scroll down"),
        Binding("c", "screen.next_measure", "colour by", show=False, tooltip="Colour tokens by another measure"),
    ]

    DEFAULT_CSS = """
    Transcript {
        layout: stream;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        scrollbar-visibility: hidden;
        scrollbar-color: $rule;
        scrollbar-color-hover: $quiet;
        scrollbar-color-active: $quiet;
        scrollbar-background: $background;
        scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
        padding: 1 0 0 1;
        &.-scrolled, &:hover { scrollbar-visibility: visible; }
    }
    """

    COMPONENT_CLASSES = {
        "label--person", "label--model", "label--note", "label--chosen",
        "tone--quiet", "tone--warning", "tone--error", "text--thinking", "text--cursor",
        "markdown--heading", "markdown--strong", "markdown--code", "markdown--quiet", "markdown--block",
        "markdown--comment", "markdown--keyword", "markdown--string", "markdown--number", "markdown--function",
        *HEAT, "heat--glyph", "heat--none", "heat--focus",
    }  # fmt: skip
    """Styles of the turns and notes in it: held here once, since styling each of them anew takes milliseconds."""

    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)
    """The size of the whole text. Textual's own lays the screen out a second time whenever it changes, which a streamed
    reply would pay for with each line; the scrollbar has its own way to hear of it."""

    class Scrolled(Message):
        """The end came into view, or left it."""

        def __init__(self, at_end: bool) -> None:
            super().__init__()
            self.at_end = at_end

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chosen: TurnView | None = None
        self._was_at_end = True

    def update_node_styles(self, animate: bool = True) -> None:
        """Style the container alone: no turn looks different for being hovered over, focused or scrolled in here.

        Textual would style and redraw every turn of the conversation.
        """
        self.app.stylesheet.update_nodes([self], animate=animate)

    def add(self, block: TextBlock) -> None:
        """Append a turn or a note, and follow."""
        self.mount(block)
        self.follow()

    async def clear(self) -> None:
        """Empty the transcript."""
        self._chosen = None
        await self.remove_children()
        self.follow()

    def follow(self) -> None:
        """Go to the end and stay there."""
        if self.is_anchored:
            self.anchor()
        self._tell()

    def scroll_page(self, pages: int) -> None:
        """Scroll by whole pages, down where positive."""
        self.scroll_relative(y=pages * max(1, self.size.height - 2), animate=False)

    # The reply that keys act on

    @property
    def chosen(self) -> TurnView | None:
        """The reply a person chose, or else the last one."""
        if self._chosen is not None and self._chosen.parent is self:
            return self._chosen
        return next((each for each in reversed(self.children) if _is_reply(each)), None)

    def choose(self, view: TurnView | None) -> None:
        """Choose a reply; None goes back to "the last one"."""
        for each, current in ((self._chosen, False), (view, True)):
            if each is not None and each.is_attached:
                each.set_current(current)
        self._chosen = view
        if view is not None:
            view.scroll_visible(animate=False)

    def choose_next(self, steps: int) -> None:
        """Choose the reply so many steps further down."""
        if (chosen := self.chosen) is not None:
            replies = self._replies()
            at = replies.index(chosen) + steps
            self.choose(replies[min(max(at, 0), len(replies) - 1)])

    def _replies(self) -> list[TurnView]:
        return [view for view in self.children if _is_reply(view)]

    @on(TurnView.Clicked)
    def _clicked(self, event: TurnView.Clicked) -> None:
        event.stop()
        if event.view.turn.role == "assistant" and event.view is not self._chosen:
            self.choose(event.view)

    # Following

    def watch_virtual_size(self, size: Size) -> None:
        """Follow as soon as there is more than fits: a short text is anchored to the top, where reading begins."""
        if (size.height > self.container_size.height) != self.is_anchored:
            self.call_next(self._anchor_if_longer)

    def release_anchor(self) -> None:
        """Let a person go who scrolls; not one who scrolls on against the end."""
        super().release_anchor()
        self.call_after_refresh(self._hold_at_end)

    def _hold_at_end(self) -> None:
        if self.is_anchored and self.scroll_target_y >= self.max_scroll_y:
            self.anchor()

    def _anchor_if_longer(self) -> None:
        longer = self.max_scroll_y > 0
        if longer != self.is_anchored:
            self.anchor(longer)
            if not longer:
                self.scroll_y = 0
        self._tell()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Take a person along who comes near the end."""
        super().watch_scroll_y(old_value, new_value)
        if old_value < new_value and 0 < self.max_scroll_y - new_value <= _NEAR_END:
            self.anchor()
        self._tell()

    def on_resize(self, _event: events.Resize) -> None:
        """See whether the end is still in view; stay there, where the room has become less."""
        if self._was_at_end:
            self._anchor_if_longer()
        self._tell()

    def _tell(self) -> None:
        at_end = self.is_vertical_scroll_end
        if at_end != self._was_at_end:
            self._was_at_end = at_end
            self.set_class(not at_end, "-scrolled")
            self.post_message(self.Scrolled(at_end))


def _is_reply(widget: Widget) -> TypeGuard[TurnView]:
    """Whether a widget is a reply that stays."""
    return isinstance(widget, TurnView) and widget.turn.role == "assistant" and widget.display
