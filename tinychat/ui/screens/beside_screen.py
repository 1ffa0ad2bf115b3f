"""Two conversations side by side: one prompt, two panes, and how far apart they are."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from textual import events, getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widget import Widget

from tinychat.protocol import (
    DownloadProgress,
    EngineFailed,
    ModelLoading,
    ModelReady,
    Notice,
    PrefillProgress,
    TurnFinished,
)
from tinychat.ui.activity import Progress
from tinychat.ui.bridge import IDLE, WAITING, Bridge, TokenRun, Update, tick
from tinychat.ui.conversation import Phase
from tinychat.ui.pair import Pair
from tinychat.ui.pair_words import doing
from tinychat.ui.remarks import Remark, failure, remarks
from tinychat.ui.screens.help import HelpScreen
from tinychat.ui.widgets.aligned_tokens import AlignedTokens
from tinychat.ui.widgets.divergence_line import DivergenceLine
from tinychat.ui.widgets.editor import Editor
from tinychat.ui.widgets.key_bar import KeyBar
from tinychat.ui.widgets.pane import Pane, loaded
from tinychat.ui.widgets.prompt import Prompt
from tinychat.ui.widgets.prompt_editor import PromptEditor
from tinychat.ui.widgets.status_line import StatusLine

_FIGURES_EVERY: Final = 0.25
"""Seconds between two repaints of speed, KL and tokens."""
_LOG: Final = logging.getLogger(__name__)


class BesideScreen(Screen[None]):
    """Sends each prompt to both, and shows what each says to it, token by token in turn."""

    BINDING_GROUP_TITLE = "Two at once"
    VERTICAL_BREAKPOINTS = [(0, "-low"), (16, "-normal")]

    BINDINGS = [
        Binding("escape", "stop", "stop", tooltip="Stop both replies; text is kept", id="chat.stop"),
        Binding("escape", "back", "back", tooltip="Go back to the prompt", id="chat.back"),
        Binding("f1", "help", "help", tooltip="Keys, and what KL and the tokens side by side say", id="chat.help"),
        Binding("ctrl+g", "tokens", "tokens", tooltip="The tokens side by side; again: go to them", id="beside.tokens"),
        Binding("f5", "parting", "first difference", tooltip="Go to the first difference", id="beside.parting"),
        Binding("f7", "pause", "pause", tooltip="Have both replies wait, or go on", id="glass.pause", priority=True),
        Binding("f8", "step", "step", tooltip="One token of each, then wait", id="glass.step", priority=True),
        Binding("ctrl+r", "regenerate", "regenerate", tooltip="Have both answer again, by one seed", id="chat.again"),
        Binding("ctrl+n", "start_anew", "new chat", tooltip="Begin an empty conversation", id="chat.new"),
        Binding("ctrl+t", "thinking", "thinking", tooltip="Fold or unfold the thinking", id="chat.thinking"),
        Binding("ctrl+l", "load_again", "load again", tooltip="Try again what couldn't be loaded", id="chat.load"),
        Binding("f9", "app.change_theme", "theme", tooltip="Choose other colours", id="chat.theme"),
        Binding("pageup", "scroll_transcript(-1)", "scroll up", show=False, tooltip="Scroll both up", id="chat.up"),
        Binding("pagedown", "scroll_transcript(1)", "scroll down", show=False, tooltip="Scroll both down"),
        Binding("ctrl+end", "follow", "to the end", show=False, tooltip="Go to the end of both and follow it"),
        Binding("ctrl+c", "interrupt", "stop or clear", show=False, tooltip="Copy, stop or clear"),
    ]

    status = getters.query_one(StatusLine)
    editor = getters.query_one(PromptEditor)
    tokens = getters.query_one(AlignedTokens)
    divergence = getters.query_one(DivergenceLine)

    def __init__(self, bridges: tuple[Bridge, Bridge], pair: Pair) -> None:
        """Prepare the screen.

        Args:
            bridges: The engines of A and B.
            pair: Their conversations.
        """
        super().__init__()
        self._bridges = bridges
        self.pair = pair
        self.panes = (Pane(pair, 0), Pane(pair, 1))
        self.queued = False
        """Whether the draft is to be sent as soon as that is possible."""
        self._progress: list[Progress] = [None, None]
        self._figures_at = 0.0

    def compose(self) -> ComposeResult:
        """Lay out, top to bottom."""
        with Horizontal(id="panes"):
            yield from self.panes
        yield AlignedTokens(self.pair, id="aligned")
        yield DivergenceLine(self.pair, id="divergence")
        yield StatusLine(id="status")
        yield Prompt(id="prompt")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Take the keyboard, paint, and only then load."""
        self.editor.focus()
        raw = self.pair.sides[0].raw
        self.editor.placeholder = "Say how it begins" if raw else "Say something to both"
        for pane in self.panes:
            if system := pane.chat.tree.system:
                pane.note("system", [Remark(system)])
        self._show_figures()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.pair.start_loading()
        self._phase_changed()
        self._pump()

    # What the engines say

    @work
    async def _pump(self) -> None:
        """Look at both outboxes, again and again, more rarely when the replies are fast."""
        while True:
            pause = IDLE
            if self.pair.busy and not self.pair.paused:
                first = any(chat.phase is Phase.PREFILL for chat in self.pair.sides)
                pause = WAITING if first else tick(sum(chat.speed.rate for chat in self.pair.sides))
            await asyncio.sleep(pause)
            if not self.app.is_running:
                return  # widgets go before workers do
            self.take([bridge.drain() for bridge in self._bridges])

    def take(self, updates: Iterable[Iterable[Update]]) -> None:
        """Show what happened on both sides."""
        before = [chat.phase for chat in self.pair.sides]
        any_came = False
        for side, theirs in enumerate(updates):
            for update in theirs:
                any_came = True
                self.pair.take(side, update)
                self._show(side, update)
        if any_came and self.pair.alignment is not None:
            if self.pair.alignment.update():
                self.refresh_bindings()
            for pane in self.panes:
                pane.show_parting()
        if [chat.phase for chat in self.pair.sides] != before:
            self._phase_changed()
        elif any_came and (time.monotonic() - self._figures_at >= _FIGURES_EVERY or self.pair.paused):
            self._show_figures()

    def _show(self, side: int, update: Update) -> None:
        pane = self.panes[side]
        match update:
            case TokenRun(turn_id=turn_id, text=text, thinking=thinking):
                if view := pane.views.get(turn_id):
                    view.say(text, thinking)
            case DownloadProgress() | ModelLoading() | PrefillProgress():
                self._progress[side] = update
            case ModelReady():
                pane.note(update.info.name.rpartition("/")[2], loaded(pane))
            case TurnFinished():
                if view := pane.views.get(update.turn_id):
                    turn = pane.chat.tree[update.turn_id]
                    view.finish(turn, remarks(update, turn, pane.chat.info.context if pane.chat.info else 0))
            case EngineFailed():
                self._fail(pane, update)
            case Notice():
                self._remark(pane, update.turn_id, [Remark(update.text, "warning")], "notice")

    def _fail(self, pane: Pane, failed: EngineFailed) -> None:
        """Show an error where it belongs; the traceback goes to the log."""
        _LOG.debug("%s\n%s", failed.summary, failed.detail)
        if failed.cancelled:
            pane.note("stopped", [Remark("Loading was stopped. Ctrl+L loads the model again.")])
            return
        view = pane.views.get(failed.turn_id) if failed.turn_id is not None else None
        if view is not None and view.live:
            view.finish(pane.chat.tree[view.turn.turn_id], [])
        self._remark(pane, failed.turn_id, failure(failed), "error")

    def _remark(self, pane: Pane, turn_id: int | None, told: list[Remark], label: str) -> None:
        if turn_id is not None and (view := pane.views.get(turn_id)):
            view.remark(*told)
        else:
            pane.note(label, told)

    def _phase_changed(self) -> None:
        """Something else goes on now: other progress, other keys; and what waited is sent."""
        for side, chat in enumerate(self.pair.sides):
            if chat.phase in (Phase.READY, Phase.NO_MODEL):
                self._progress[side] = None
        self.refresh_bindings()
        self._show_figures()
        if self.queued and self.pair.ready:
            self.queued = False
            if self.editor.draft.strip():
                self._send(self.editor.draft)
        elif not self.pair.loading and not any(chat.info for chat in self.pair.sides):
            self.queued = False

    def _show_figures(self) -> None:
        """Draw what changes all the time, now and then."""
        self._figures_at = time.monotonic()
        for pane, progress in zip(self.panes, self._progress, strict=True):
            pane.show_title(progress)
        self.status.show(doing(self.pair, self.queued))
        self.divergence.update_lines()
        if self.has_class("-tokens"):
            self.tokens.update_lines()

    # The prompt

    @on(PromptEditor.Submitted)
    def _submitted(self, event: PromptEditor.Submitted) -> None:
        """Send the draft, have it wait, or say why not; in the last two cases it stays where it is."""
        if not event.text.strip():
            return
        if self.pair.ready:
            self._send(event.text)
        elif self.pair.busy:
            self.status.hint("One question at a time: Esc stops both replies. Your text is kept.")
        elif self.pair.loading:
            self.queued = True
            self.status.hint("Your message is sent when the models are ready; Esc takes it back.")
            self._show_figures()
        else:
            self.status.hint("No model is loaded. Ctrl+L tries again; your text is kept.")

    @on(Prompt.Edited)
    def _edited(self, event: Prompt.Edited) -> None:
        event.stop()

    def _send(self, text: str) -> None:
        """Ask both."""
        for pane, turns in zip(self.panes, self.pair.ask(text), strict=True):
            for turn in turns or ():
                pane.add_turn(turn)
        self.editor.clear_draft()
        self.tokens.follow()
        self.status.clear_hint()
        self._phase_changed()

    def on_resize(self) -> None:
        """Give both texts the same width, so that what is the same is broken into the same lines."""
        first, second = self.panes
        width = max(1, (self.size.width - 1) // 2)
        first.styles.width, second.styles.width = width, width + 1  # the rule between them is the second one's

    def on_key(self, event: events.Key) -> None:
        """Let a person type wherever the focus is: letters that nobody else wants go to the prompt."""
        wanted = isinstance(self.focused, Editor) or event.key in self.active_bindings
        if event.is_printable and event.character and not wanted:
            self.editor.focus()
            self.editor.insert(event.character)

    # Actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys apply: None greys one, False hides it."""
        pair = self.pair
        elsewhere = self.focused is not self.editor
        match action:
            case "stop":
                if self.queued or pair.busy or pair.loading:
                    return True
                return False if elsewhere else None
            case "back":
                return elsewhere and not (self.queued or pair.busy or pair.loading)
            case "step":
                return True if pair.busy else None
            case "parting":
                return True if pair.alignment is not None and pair.alignment.difference is not None else None
            case "regenerate":
                return True if pair.ready and any(chat.tree.head is not None for chat in pair.sides) else None
            case "thinking":
                return any(chat.info is not None and chat.info.thinking for chat in pair.sides)
            case "load_again":
                return not pair.loading and not pair.busy and any(chat.info is None for chat in pair.sides)
        return True

    def action_stop(self) -> None:
        """Take back what waits to be sent; or else stop what runs."""
        if self.queued:
            self.queued = False
        else:
            self.pair.stop()
        self._phase_changed()

    def action_back(self) -> None:
        """Go back to the prompt."""
        self.editor.focus()

    def action_interrupt(self) -> None:
        """Ctrl+C: copy what is selected, stop what runs, or clear the draft, in this order; never quit by surprise."""
        if self.editor.selected_text:
            self.editor.action_copy()
        elif selected := self.get_selected_text():
            self.app.copy_to_clipboard(selected)
        elif self.pair.busy:
            self.action_stop()
        elif self.editor.text:
            self.editor.clear_draft()
            self.status.hint("Draft cleared: Ctrl+Z brings it back.")
        else:
            self.status.hint("Ctrl+Q quits.")

    def action_help(self) -> None:
        """Explain the keys, the widget in focus, KL and the tokens side by side."""
        own = next((widget.HELP for widget in self._focused_and_up() if widget.HELP), "") or ""
        topics = dict.fromkeys((own, DivergenceLine.HELP, AlignedTokens.HELP))
        self.app.push_screen(HelpScreen(self.active_bindings.values(), "\n".join(filter(None, topics)), None))

    def action_tokens(self) -> None:
        """Show the tokens side by side; where they are shown, go to them; where one is there, hide them."""
        if not self.has_class("-tokens"):
            self.add_class("-tokens")
            self.tokens.follow()
        elif self.focused is not self.tokens:
            self.tokens.focus()
        else:
            self.remove_class("-tokens")
            self.editor.focus()
        self.refresh_bindings()

    def action_parting(self) -> None:
        """Go to the first difference, in both and in the tokens."""
        for pane in self.panes:
            pane.go_to_parting()
        self.tokens.go_to_parting()

    def action_pause(self) -> None:
        """Have both wait, or go on."""
        self.pair.hold()
        if not self.pair.busy:
            holding = self.pair.sides[0].pacing.holding
            self.status.hint("The next replies wait before their first token." if holding else "They won't wait.")

    def action_step(self) -> None:
        """One token of each."""
        self.pair.step()

    def action_regenerate(self) -> None:
        """Have both answer again."""
        old = [chat.tree.head for chat in self.pair.sides]
        replies = self.pair.regenerate()
        for pane, before, reply in zip(self.panes, old, replies, strict=True):
            if reply is not None:
                pane.remove_turn(before)
                pane.add_turn(reply)
        self.tokens.follow()
        self._phase_changed()

    async def action_start_anew(self) -> None:
        """Begin an empty conversation."""
        self.pair.start_anew()
        for pane in self.panes:
            await pane.clear()
            pane.note("new chat", [Remark(f"with {pane.chat.name}")])
        self._phase_changed()

    def action_thinking(self) -> None:
        """Fold or unfold the thinking of the last replies."""
        for pane in self.panes:
            if view := pane.transcript.chosen:
                view.toggle_thinking()

    def action_load_again(self) -> None:
        """Try again what couldn't be loaded."""
        self.pair.start_loading()
        self._phase_changed()

    def action_scroll_transcript(self, pages: int) -> None:
        """Scroll both by pages."""
        for pane in self.panes:
            pane.transcript.scroll_page(pages)

    def action_follow(self) -> None:
        """Go to the end of both and follow it."""
        for pane in self.panes:
            pane.transcript.follow()

    def _focused_and_up(self) -> list[Widget]:
        nodes = self.focused.ancestors_with_self if self.focused is not None else []
        return [node for node in nodes if isinstance(node, Widget)]
