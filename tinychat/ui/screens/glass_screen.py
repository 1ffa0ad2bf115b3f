"""The chat screen's glass box: the views, and the token in focus that all of them follow.

What the views draw is kept by `glass.py`; the keys are listed in `glass_keys.py` and bound by `chat.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual import getters, on
from textual.app import ComposeResult
from textual.geometry import Region

from tinychat.protocol import TurnFinished
from tinychat.ui.bridge import Bridge, Update
from tinychat.ui.conversation import Conversation
from tinychat.ui.glass import Glass
from tinychat.ui.screens.pace_screen import PaceScreen
from tinychat.ui.views.pane import ViewPane
from tinychat.ui.views.tabs import ViewTabs
from tinychat.ui.views.view import View
from tinychat.ui.widgets.editor import Editor
from tinychat.ui.widgets.sampler_panel import SamplerPanel
from tinychat.ui.widgets.token_block import TokenBlock


class GlassScreen(PaceScreen):
    """Adds the views, and keys and clicks that move the focus over the tokens of a reply."""

    pane = getters.query_one(ViewPane)

    def __init__(self, bridge: Bridge, chat: Conversation) -> None:
        super().__init__(bridge, chat)
        self.glass = Glass(bridge.send, chat)
        self._as_tokens: dict[int, bool] = {}
        """Replies that a person wants to see as tokens, or doesn't; the others are by what is open."""
        self._last_view = "tokens"

    def compose_side(self) -> ComposeResult:
        """Lay out the views below the panel."""
        yield from super().compose_side()
        yield ViewPane(self.glass, id="views")

    # What the engine says

    def take(self, updates: Iterable[Update]) -> None:
        """Show what happened, and ask what the open view lacks."""
        updates = list(updates)
        super().take(updates)
        chosen, typed = self.follow_choice(), self.follow_typed()
        if chosen or typed or (self.glass.view and updates):
            self.pane.update()
        if self.glass.view:
            self.glass.ask()

    def _show(self, update: Update) -> None:
        self.glass.take(update)
        super()._show(update)
        if isinstance(update, TurnFinished) and self.glass.view:
            self.call_after_refresh(self._mark_focus)  # what is said below the reply has pushed it away

    def follow_choice(self) -> bool:
        """Look at the reply that keys act on; return whether that is another one now."""
        chosen = self.transcript.chosen
        before = self.glass.turn_id
        if not self.glass.look_at(chosen.turn.turn_id if chosen else None):
            return False
        for turn_id in (before, self.glass.turn_id):
            self._draw_reply(turn_id)
        return True

    def follow_typed(self) -> bool:
        """Have the view of BPE look at what is in the prompt; return whether that is something else now."""
        return self.glass.view == "bpe" and self.glass.typed.follow(self.editor.draft)

    # Views

    def open_view(self, name: str, *, enter: bool = True) -> None:
        """Open a view and go to it; an empty name closes the one that is open and goes back to the prompt."""
        self.glass.open(name)
        self.set_class(bool(name), "-view")
        self.follow_typed()
        self.pane.show()
        if name:
            self._last_view = name
            self.remove_class("-panel-open")
            if enter:
                self._enter_view()
            self.call_after_refresh(self._mark_focus)
        elif not isinstance(self.focused, Editor):
            self.editor.focus()
        self.follow_choice()
        self._draw_reply(self.glass.turn_id)
        self.fit_inspector()
        self.refresh_bindings()

    def fit_inspector(self) -> None:
        """Give the inspector the rows the screen has for it; an open view needs them more."""
        height = self.size.height
        self.inspector.set_rows(2 if height >= 36 else 1 if height >= 16 and not self.glass.view else 0)

    def action_views(self) -> None:
        """Open the view that was open last; go to it, or from it back to the prompt."""
        if not self.glass.view:
            self.open_view(self._last_view)
        elif isinstance(self.focused, View):
            self.editor.focus()
        else:
            self._enter_view()

    def action_view(self, name: str) -> None:
        """Open a view."""
        self.open_view(name)

    @on(ViewTabs.Chosen)
    def _tab_chosen(self, event: ViewTabs.Chosen) -> None:
        self.open_view(event.name)

    def _enter_view(self) -> None:
        if (view := self.pane.shown) is not None:
            # At once, for the keys that a person has pressed meanwhile.
            self.set_focus(view)

    # Tokens

    def action_tokens(self) -> None:
        """Show the reply as tokens, or as text again."""
        if (view := self.transcript.chosen) is not None:
            self._as_tokens[view.turn.turn_id] = not view.as_tokens
            self._draw_reply(view.turn.turn_id)
            self.refresh_bindings()

    def action_next_measure(self) -> None:
        """Colour tokens by another measure."""
        self.glass.next_measure()
        for turn_id in self.views:
            self._draw_reply(turn_id)
        self.call_after_refresh(self._mark_focus)
        self.pane.update()

    def action_focus_token(self, steps: int) -> None:
        """Look at a token before or after."""
        self.glass.step(steps)
        self._show_focus()

    def action_focus_end(self, side: int) -> None:
        """Look at the first or the last token."""
        if reply := self.glass.reply:
            self._focus(len(reply.tokens) if side else 0)

    def action_focus_line(self, lines: int) -> None:
        """Look at the token above or below."""
        reply, view = self.glass.reply, self.transcript.chosen
        if reply is not None and view is not None and (tokens := view.tokens) is not None:
            self._focus(tokens.flow.beside(reply.at, lines))

    @on(TokenBlock.TokenClicked)
    def _token_clicked(self, event: TokenBlock.TokenClicked) -> None:
        reply = event.block.reply
        if reply is not None and (view := self.views.get(reply.turn_id)) is not None:
            self.transcript.choose(view)
            self.follow_choice()
            self._focus(event.index)

    def _focus(self, index: int) -> None:
        self.glass.focus(index)
        self._show_focus()

    def _show_focus(self) -> None:
        self._mark_focus()
        self.pane.update()
        self.glass.ask()

    def _mark_focus(self) -> None:
        """Mark the token in focus in the transcript, and scroll to it; follow a reply that grows, if that is wanted."""
        reply = self.glass.reply
        view = self.views.get(reply.turn_id) if reply else None
        if reply is None or view is None or not reply.tokens:
            return
        row = view.mark_token(reply.at)
        if reply.focus is None and view.live:
            self.transcript.follow()
        elif row is not None:
            self.transcript.release_anchor()
            region = Region(0, view.virtual_region.y + row, 1, 1)
            self.transcript.scroll_to_region(region, animate=False, force=True)

    def _draw_reply(self, turn_id: int | None) -> None:
        """Show a reply as tokens where that is wanted, or else as text."""
        view = None if turn_id is None else self.views.get(turn_id)
        if view is None or view.turn.role != "assistant":
            return
        looked_into = self.glass.view not in ("", "prompt", "bpe", "cache") and turn_id == self.glass.turn_id
        wanted = self._as_tokens.get(view.turn.turn_id, looked_into)
        view.show_tokens(self.glass.measure if wanted else None)

    # The chain by the sliders

    @on(SamplerPanel.Changed)
    def _show_by_sliders(self) -> None:
        """While nothing is being drawn, show what the sliders would make of the token in focus."""
        if not self.chat.busy or self.chat.pacing.paused:
            self.glass.by_sliders = True

    def action_by_sliders(self) -> None:
        """Go between the chain as it was and as the sliders stand."""
        self.glass.by_sliders = not self.glass.by_sliders
        self.pane.update()

    def check_key(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys apply: None greys one, False hides it."""
        chosen = self.transcript.chosen
        match action:
            case "view":
                return isinstance(self.focused, View)
            case "tokens":
                return True if chosen is not None else None
            case "next_measure" | "focus_token" | "focus_end" | "focus_line":
                return chosen is not None and (isinstance(self.focused, View) or chosen.as_tokens)
        return super().check_key(action, parameters)
