"""The chat: types become commands, events become text.

The screen wires widgets to the conversation and decides nothing that the conversation could; it draws each thing at
most once a tick, figures twice a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from textual import events, getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Horizontal
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget

from tinychat.chats import Turn
from tinychat.protocol import (
    CacheStats,
    DownloadProgress,
    EngineFailed,
    MemoryStats,
    ModelLoading,
    ModelReady,
    Notice,
    PrefillProgress,
    Tokenized,
    TokenizerReady,
    TurnFinished,
)
from tinychat.ui import figures
from tinychat.ui.activity import Progress, activity
from tinychat.ui.bridge import IDLE, WAITING, Bridge, TokenRun, Update, tick
from tinychat.ui.conversation import Conversation, Phase
from tinychat.ui.draft_tokenizer import DraftTokenizer
from tinychat.ui.foreign_text import inert
from tinychat.ui.remarks import Remark, failure, remarks
from tinychat.ui.screens.help import HelpScreen
from tinychat.ui.screens.system_prompt import SystemPromptScreen
from tinychat.ui.widgets.cache_gauge import CacheGauge
from tinychat.ui.widgets.editor import Editor
from tinychat.ui.widgets.key_bar import KeyBar
from tinychat.ui.widgets.memory_gauge import MemoryGauge
from tinychat.ui.widgets.new_text import NewText
from tinychat.ui.widgets.note import Note
from tinychat.ui.widgets.prompt import Prompt
from tinychat.ui.widgets.sampler_panel import SamplerPanel
from tinychat.ui.widgets.setting import Setting
from tinychat.ui.widgets.side_panel import SidePanel
from tinychat.ui.widgets.status_line import StatusLine
from tinychat.ui.widgets.title_bar import TitleBar
from tinychat.ui.widgets.token_inspector import TokenInspector
from tinychat.ui.widgets.transcript import Transcript
from tinychat.ui.widgets.turn_view import TurnView

_FIGURES_EVERY: Final = 0.5
"""Seconds between two repaints of speed and gauges."""
_LOG: Final = logging.getLogger(__name__)


class ChatScreen(Screen[None]):
    """One conversation with one model."""

    BINDING_GROUP_TITLE = "Chat"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-minimal"), (5, "-tiny"), (10, "-short"), (16, "-normal"), (36, "-tall")]

    BINDINGS = [
        Binding("escape", "stop", "stop", tooltip="Stop the reply or the loading; text is kept", id="chat.stop"),
        Binding("f1", "help", "help", tooltip="Keys, what has the focus, facts about the model", id="chat.help"),
        Binding("f2", "panel", "panel", tooltip="Show or hide sampler and gauges", id="chat.panel"),
        Binding("f3", "sampler", "sampler", tooltip="Go to the sampler's sliders", id="chat.sampler"),
        Binding("ctrl+n", "start_anew", "new chat", tooltip="Begin an empty conversation", id="chat.new"),
        Binding("ctrl+r", "regenerate", "regenerate", tooltip="Have the last question answered again", id="chat.again"),
        Binding("ctrl+o", "copy_reply", "copy", tooltip="Copy the last or the chosen reply", id="chat.copy"),
        Binding("f4", "system_prompt", "system", tooltip="Show and change the system prompt", id="chat.system"),
        Binding("f5", "raw", "raw", tooltip="Show the reply raw, or as Markdown", id="chat.raw"),
        Binding("ctrl+t", "thinking", "thinking", tooltip="Fold or unfold the thinking", id="chat.thinking"),
        Binding("ctrl+l", "load_again", "load again", tooltip="Try to load the model again", id="chat.load"),
        Binding("f9", "app.change_theme", "theme", tooltip="Choose other colours", id="chat.theme"),
        Binding("ctrl+up", "choose(-1)", "reply above", show=False, tooltip="Choose the reply above", id="chat.above"),
        Binding("ctrl+down", "choose(1)", "reply below", show=False, tooltip="Choose the reply below", id="chat.below"),
        Binding("pageup", "scroll_transcript(-1)", "scroll up", show=False, tooltip="Scroll up", id="chat.up"),
        Binding("pagedown", "scroll_transcript(1)", "scroll down", show=False, tooltip="Scroll down", id="chat.down"),
        Binding("ctrl+end", "follow", "to the end", show=False, tooltip="Go to the end and follow it", id="chat.end"),
        Binding("ctrl+c", "interrupt", "stop or clear", show=False, tooltip="Copy, stop or clear", id="chat.interrupt"),
    ]

    title_bar = getters.query_one(TitleBar)
    transcript = getters.query_one(Transcript)
    new_text = getters.query_one(NewText)
    sampler_panel = getters.query_one(SamplerPanel)
    cache_gauge = getters.query_one(CacheGauge)
    memory_gauge = getters.query_one(MemoryGauge)
    inspector = getters.query_one(TokenInspector)
    status = getters.query_one(StatusLine)

    def __init__(self, bridge: Bridge, chat: Conversation, first_prompt: str = "") -> None:
        """Prepare the screen; loading begins after its first paint."""
        super().__init__()
        self._bridge = bridge
        self.chat = chat
        self._first_prompt = first_prompt
        self._drafts = DraftTokenizer(bridge.send)
        self._views: dict[int, TurnView] = {}
        self._progress: Progress = None
        self._queued = False
        self._cache: CacheStats | None = None
        self._memory: MemoryStats | None = None
        self._figures_at = 0.0
        self._asking: Timer | None = None

    def compose(self) -> ComposeResult:
        """Lay out the parts, top to bottom."""
        yield TitleBar(self.chat.name, id="title")
        with Horizontal(id="body"):
            with Container(id="chat"):
                yield Transcript(id="transcript")
                yield NewText(id="new-text")
            yield SidePanel()
        yield TokenInspector(id="inspector")
        yield StatusLine(id="status")
        yield Prompt(id="prompt")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Take the keyboard, paint, and only then load: importing torch stalls the loop once."""
        self.editor.focus()
        self.editor.placeholder = inert("Say how it begins" if self.chat.raw else "Say something")
        if self._first_prompt:
            self.editor.put(self._first_prompt)
            self._queued = True
        self._show_system_prompt()
        self._show_activity()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.chat.start_loading()
        self._pump()

    @property
    def editor(self) -> Editor:
        """Where the draft is."""
        return self.query_one(Prompt).editor

    # Events

    @work
    async def _pump(self) -> None:
        """Look at the outbox, again and again, more rarely when a reply is fast."""
        while True:
            match self.chat.phase:
                case Phase.PREFILL:
                    pause = WAITING
                case Phase.DECODE:
                    pause = tick(self.chat.speed.rate)
                case _:
                    pause = IDLE
            await asyncio.sleep(pause)
            if not self.app.is_running:
                return  # widgets go before workers do
            self.take(self._bridge.drain())

    def take(self, updates: Iterable[Update]) -> None:
        """Show what happened."""
        for update in updates:
            before = self.chat.phase
            self.chat.take(update)
            self._show(update)
            if self.chat.phase is not before:
                self._phase_changed()
        now = time.monotonic()
        if now - self._figures_at >= _FIGURES_EVERY:
            self._figures_at = now
            self._show_figures()
        if self.chat.phase is not Phase.DECODE:
            self._show_activity()

    def _show(self, update: Update) -> None:
        """Show one update."""
        match update:
            case TokenRun(turn_id=turn_id, text=text, thinking=thinking):
                if view := self._views.get(turn_id):
                    view.say(text, thinking)
                    self._mark_new_text()
            case DownloadProgress() | ModelLoading() | PrefillProgress():
                self._progress = update
            case CacheStats():
                self._cache = update
            case MemoryStats():
                self._memory = update
            case Tokenized():
                pieces = self._drafts.answer(update)
                if pieces is not None:
                    self.inspector.show(pieces if self.editor.draft else ())
            case TokenizerReady():
                self._drafts.begin()
                self.inspector.show(())
            case ModelReady():
                self._show_model(update)
            case TurnFinished():
                self._finish(update)
            case EngineFailed():
                self._fail(update)
            case Notice(text=text, turn_id=turn_id):
                self._remark(turn_id, [Remark(text, "warning")], "notice")

    def _phase_changed(self) -> None:
        """Something else goes on now: other progress, other keys, and perhaps a draft that waited for it."""
        if self.chat.phase in (Phase.READY, Phase.NO_MODEL):
            self._progress = None
        self.refresh_bindings()
        self._show_activity()
        if self._queued and self.chat.phase is Phase.READY:
            self._queued = False
            self._send(self.editor.draft)
        elif self.chat.phase is Phase.NO_MODEL:
            self._queued = False

    def _show_model(self, ready: ModelReady) -> None:
        """Show what was loaded and what its sampler starts with."""
        info = ready.info
        self.title_bar.show_model(info)
        self.sampler_panel.start(ready.sampler, dict(ready.sources))
        self.inspector.set_context(info.context)
        if not self._drafts.ready:
            self._drafts.begin()
            self.inspector.show(())
        count = figures.count
        lines = [self.chat.card_summary] if self.chat.card_summary else []
        context = f"Context {count(info.context)} of the model's {count(info.model_context)} tokens."
        lines.append(f"{info.dtype_reason}. {context}")
        if info.format == "base":
            how = "the text goes on as it is" if self.chat.raw else "it continues a transcript"
            lines.append(f"This is a base model: {how}, and stops only at a limit or where it would speak for you.")
        told = [Remark(line) for line in lines] + [Remark(notice, "warning") for notice in info.notices]
        self.transcript.add(Note(info.name.rpartition("/")[2], told))

    def _finish(self, finished: TurnFinished) -> None:
        """Show the final truth of a reply, and the engine's own figures."""
        self.title_bar.show_speed(finished.decode_rate, finished.first_token_seconds, final=True)
        self.sampler_panel.show_seed(finished.seed)
        self._figures_at = 0.0
        if view := self._views.get(finished.turn_id):
            turn = self.chat.tree[finished.turn_id]
            version = self.chat.tree.versions(turn.turn_id).index(turn) + 1
            context = self.chat.info.context if self.chat.info else 0
            view.finish(turn, remarks(finished, turn, version, context))
            self._mark_new_text()

    def _fail(self, failed: EngineFailed) -> None:
        """Show an error where it belongs; the traceback goes to the log."""
        _LOG.debug("%s\n%s", failed.summary, failed.detail)
        view = self._views.get(failed.turn_id) if failed.turn_id is not None else None
        if view is not None and view.live:
            view.finish(self.chat.tree[view.turn.turn_id], [])
        if failed.cancelled:
            self._remark(None, [Remark("Loading was stopped. Ctrl+L loads the model again.")], "stopped")
        else:
            self._remark(failed.turn_id, failure(failed), "error")

    def _remark(self, turn_id: int | None, told: list[Remark], label: str) -> None:
        """Put sentences below their turn, or into the transcript where they belong to none."""
        if turn_id is not None and (view := self._views.get(turn_id)):
            view.remark(*told)
        else:
            self.transcript.add(Note(label, told))

    def _show_figures(self) -> None:
        """Draw what changes all the time, now and then."""
        speed = self.chat.speed
        if self.chat.phase is Phase.DECODE:
            self.title_bar.show_speed(speed.rate, speed.first_token_seconds, final=False)
            self._show_activity()
        if self._cache is not None:
            self.cache_gauge.show(self._cache)
            self._cache = None
        if self._memory is not None:
            self.memory_gauge.show(self._memory)
            self._memory = None

    def _show_activity(self) -> None:
        self.status.show(activity(self.chat, self._progress, self._queued))

    def _mark_new_text(self) -> None:
        self.new_text.display = not self.transcript.is_vertical_scroll_end

    # The prompt

    @on(Prompt.Submitted)
    def _submitted(self, event: Prompt.Submitted) -> None:
        """Send the draft, have it wait, or say why not; in the last two cases it stays where it is."""
        if not event.text.strip():
            return
        match self.chat.phase:
            case Phase.READY:
                self._send(event.text)
            case Phase.PREFILL | Phase.DECODE:
                self._hint("One reply at a time: Esc stops this one. Your text is kept.")
            case Phase.NO_MODEL:
                self._hint("No model is loaded. Ctrl+L tries again; your text is kept.")
            case _:
                self._queued = True
                self._hint("Your message is sent when the model is ready; Esc takes it back.")
                self.refresh_bindings()
                self._show_activity()

    def _send(self, text: str) -> None:
        """Ask the model."""
        question, reply = self.chat.ask(text)
        self.editor.clear_draft()
        self._add_view(question, "you")
        self._add_view(reply, self.chat.name)
        self._phase_changed()

    def _add_view(self, turn: Turn, label: str) -> None:
        """Put a turn at the end of the transcript."""
        reply = turn.role == "assistant"
        base = self.chat.info is not None and self.chat.info.format == "base"
        plain = base or self.chat.raw
        view = TurnView(
            turn,
            label.rpartition("/")[2],
            markdown=reply and not plain,
            trim=reply and base and not self.chat.raw,
            live=reply and turn.reason is None,
        )
        self._views[turn.turn_id] = view
        self.transcript.choose(None)
        self.transcript.add(view)

    @on(Prompt.Edited)
    def _edited(self, event: Prompt.Edited) -> None:
        """Have the draft cut into pieces, a moment after the last key; the longer it is, the later."""
        editor = self.editor
        self.inspector.move_cursor(editor.cursor_byte)
        if not event.draft_changed:
            return
        if self._asking is not None:
            self._asking.stop()
        draft = editor.draft
        if draft:
            self._asking = self.set_timer(0.04 + len(draft) / 500_000, lambda: self._drafts.ask(draft))
        else:
            self.inspector.show((), ready=self._drafts.ready)

    # Other widgets

    @on(SamplerPanel.Changed)
    def _sampler_changed(self, event: SamplerPanel.Changed) -> None:
        self.chat.set_sampler(event.sampler)

    @on(Setting.Refused)
    def _setting_refused(self, event: Setting.Refused) -> None:
        self._hint(event.sentence)

    @on(Transcript.Scrolled)
    def _scrolled(self, event: Transcript.Scrolled) -> None:
        if event.at_end:
            self.new_text.display = False

    @on(NewText.Clicked)
    def action_follow(self) -> None:
        """Go to the end and follow it."""
        self.transcript.follow()
        self.new_text.display = False

    def on_resize(self, event: events.Resize) -> None:
        """Give the inspector the rows the screen has for it."""
        height = event.size.height
        self.inspector.set_rows(2 if height >= 36 else 1 if height >= 16 else 0)

    def on_key(self, event: events.Key) -> None:
        """Let a person type wherever the focus is: letters that nobody else wants go to the prompt."""
        if event.is_printable and event.character and not isinstance(self.focused, Editor):
            self.editor.focus()
            self.editor.insert(event.character)

    # Actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys apply: None greys one, False hides it."""
        chat, phase = self.chat, self.chat.phase
        match action:
            case "stop":
                doing = chat.busy or phase is Phase.LOADING or self._queued
                return True if doing or self.focused is not self.editor or self._panel_covers else None
            case "regenerate":
                return True if phase is Phase.READY and chat.tree.head is not None else None
            case "copy_reply" | "raw" | "choose":
                return True if any(view.turn.role == "assistant" for view in self._views.values()) else None
            case "system_prompt":
                return None if chat.raw else True
            case "thinking":
                return chat.info is not None and chat.info.thinking
            case "load_again":
                return phase is Phase.NO_MODEL
        return True

    def action_stop(self) -> None:
        """Stop what runs; or else go back to the prompt."""
        if self._queued:
            self._queued = False
        elif self.chat.stop():
            pass
        elif self.focused is not self.editor or self._panel_covers:
            self.remove_class("-panel-open")
            self.editor.focus()
            self.transcript.choose(None)
        self._phase_changed()

    def action_interrupt(self) -> None:
        """Ctrl+C: copy what is selected, stop what runs, or clear the draft, in this order; never quit by surprise."""
        if self.editor.selected_text:
            self.editor.action_copy()
        elif selected := self.get_selected_text():
            self.app.copy_to_clipboard(selected)
        elif self.chat.busy:
            self.action_stop()
        elif self.editor.text:
            self.editor.clear_draft()
            self._hint("Draft cleared: Ctrl+Z brings it back.")
        else:
            self._hint("Ctrl+Q quits.")

    def action_help(self) -> None:
        """Explain the keys, the widget in focus and the model."""
        topic = next((w.HELP for w in self._focused_and_up() if w.HELP), "") or ""
        self.app.push_screen(HelpScreen(self.active_bindings.values(), topic, self.chat.info))

    def action_panel(self) -> None:
        """Show or hide the side panel; where there is no room beside the transcript it lies over it."""
        self.toggle_class("-panel-closed" if self.has_class("-wide") else "-panel-open")

    def action_sampler(self) -> None:
        """Go to the first slider."""
        self.remove_class("-panel-closed")
        if self.has_class("-narrow"):
            self.add_class("-panel-open")
        self.call_after_refresh(self.query(Setting).first().focus, scroll_visible=False)

    async def action_start_anew(self) -> None:
        """Begin an empty conversation."""
        self.chat.start_anew()
        self._views.clear()
        await self.transcript.clear()
        self._show_system_prompt()
        self.transcript.add(Note("new chat", [Remark(f"with {self.chat.name}")]))
        self._phase_changed()

    def action_regenerate(self) -> None:
        """Have the last question answered again."""
        old = self.chat.tree.head
        reply = self.chat.regenerate()
        if old is not None and (view := self._views.pop(old, None)):
            view.remove()
        self._add_view(reply, self.chat.name)
        self._phase_changed()

    def action_copy_reply(self) -> None:
        """Copy a reply, raw and without its thinking."""
        if view := self.transcript.chosen:
            self.app.copy_to_clipboard(view.text)
            size = figures.count(len(view.text))
            self._hint(f"Copied {size} characters to the terminal's clipboard (OSC 52, which some terminals refuse).")

    def action_system_prompt(self) -> None:
        """Show the system prompt, to be changed."""
        self.app.push_screen(SystemPromptScreen(self.chat.tree.system), self._set_system_prompt)

    def action_raw(self) -> None:
        """Change between raw and Markdown."""
        if view := self.transcript.chosen:
            view.toggle_markdown()
            self._hint("Markdown" if view.markdown else "Raw: exactly what was said")

    def action_thinking(self) -> None:
        """Fold or unfold the thinking."""
        if view := self.transcript.chosen:
            view.toggle_thinking()

    def action_load_again(self) -> None:
        """Try to load the model again."""
        self.chat.start_loading()
        self._phase_changed()

    def action_choose(self, steps: int) -> None:
        """Choose the reply that keys act on."""
        self.transcript.choose_next(steps)

    def action_scroll_transcript(self, pages: int) -> None:
        """Scroll by pages."""
        self.transcript.scroll_page(pages)

    # Helpers

    @property
    def _panel_covers(self) -> bool:
        """Whether the side panel lies over the transcript."""
        return self.has_class("-narrow") and self.has_class("-panel-open")

    def _focused_and_up(self) -> list[Widget]:
        nodes = self.focused.ancestors_with_self if self.focused is not None else []
        return [node for node in nodes if isinstance(node, Widget)]

    def _hint(self, text: str) -> None:
        self.status.hint(text)

    def _show_system_prompt(self) -> None:
        if system := self.chat.tree.system:
            self.transcript.add(Note("system", [Remark(system)]))

    def _set_system_prompt(self, system: str | None) -> None:
        """Take what the editor closed with."""
        if system is None or system == self.chat.tree.system:
            return
        self.chat.tree.system = system
        if system:
            self._show_system_prompt()
        else:
            self.transcript.add(Note("system", [Remark("No system prompt any more.")]))
        self._hint("The system prompt holds from the next message on.")
