"""What the engine says, drawn: the half of the chat screen that looks up.

It drains the bridge, lets the conversation take each update, and shows it: each thing at most once a tick, figures
twice a second. What a person does is the other half, `chat.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from textual import getters, work
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.screen import Screen

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
from tinychat.ui.remarks import NOTHING_SAID, TAKEN_BACK, Remark, failure, remarks
from tinychat.ui.widgets.cache_gauge import CacheGauge
from tinychat.ui.widgets.key_bar import KeyBar
from tinychat.ui.widgets.memory_gauge import MemoryGauge
from tinychat.ui.widgets.new_text import NewText
from tinychat.ui.widgets.note import Note
from tinychat.ui.widgets.prompt import Prompt
from tinychat.ui.widgets.prompt_editor import PromptEditor
from tinychat.ui.widgets.sampler_panel import SamplerPanel
from tinychat.ui.widgets.side_panel import SidePanel
from tinychat.ui.widgets.speculation_gauge import SpeculationGauge
from tinychat.ui.widgets.status_line import StatusLine
from tinychat.ui.widgets.title_bar import TitleBar
from tinychat.ui.widgets.token_inspector import TokenInspector
from tinychat.ui.widgets.transcript import Transcript
from tinychat.ui.widgets.turn_view import TurnView

_FIGURES_EVERY: Final = 0.5
"""Seconds between two repaints of speed and gauges."""
_LOG: Final = logging.getLogger(__name__)


class EngineScreen(Screen[None]):
    """Shows one conversation with one model as the engine tells it."""

    title_bar = getters.query_one(TitleBar)
    transcript = getters.query_one(Transcript)
    new_text = getters.query_one(NewText)
    sampler_panel = getters.query_one(SamplerPanel)
    speculation_gauge = getters.query_one(SpeculationGauge)
    cache_gauge = getters.query_one(CacheGauge)
    memory_gauge = getters.query_one(MemoryGauge)
    inspector = getters.query_one(TokenInspector)
    status = getters.query_one(StatusLine)
    editor = getters.query_one(PromptEditor)

    def __init__(self, bridge: Bridge, chat: Conversation) -> None:
        """Prepare the screen; nothing is drained before `begin`."""
        super().__init__()
        self._bridge = bridge
        self.chat = chat
        self.drafts = DraftTokenizer(bridge.send)
        self.views: dict[int, TurnView] = {}
        """The turns on the screen, by their ids, in order."""
        self.told: dict[int, list[Remark]] = {}
        """What was said below each turn, those off the screen included."""
        self.queued = False
        """Whether the draft is to be sent as soon as that is possible."""
        self._progress: Progress = None
        self._cache: CacheStats | None = None
        self._memory: MemoryStats | None = None
        self._figures_at = 0.0

    def compose(self) -> ComposeResult:
        """Lay out the parts, top to bottom."""
        yield TitleBar(self.chat.name, id="title")
        with Horizontal(id="body"):
            with Container(id="chat"):
                yield Transcript(id="transcript")
                yield NewText(id="new-text")
            with Vertical(id="side"):
                yield from self.compose_side()
        yield TokenInspector(id="inspector")
        yield StatusLine(id="status")
        yield Prompt(id="prompt")
        yield KeyBar(id="keys")

    def compose_side(self) -> ComposeResult:
        """Lay out what stands beside the transcript."""
        yield SidePanel()

    def check_key(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell whether a key applies: None greys it, False hides it. What nobody knows better applies."""
        return True

    def begin(self) -> None:
        """Load the model and listen to the engine."""
        self.chat.start_loading()
        self._pump()

    @work
    async def _pump(self) -> None:
        """Look at the outbox, again and again, more rarely when a reply is fast."""
        while True:
            match self.chat.phase:
                case Phase.PREFILL:
                    pause = WAITING
                case Phase.DECODE:
                    pause = IDLE if self.chat.pacing.paused else tick(self.chat.speed.rate)
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
                self.phase_changed()
        now = time.monotonic()
        if now - self._figures_at >= _FIGURES_EVERY:
            self._figures_at = now
            self._show_figures()
        if self.chat.phase is not Phase.DECODE or self.chat.pacing.paused:
            self.show_activity()

    def _show(self, update: Update) -> None:
        """Show one update."""
        match update:
            case TokenRun(turn_id=turn_id, text=text, thinking=thinking):
                if view := self.views.get(turn_id):
                    view.say(text, thinking)
                    self._mark_new_text()
            case DownloadProgress() | ModelLoading() | PrefillProgress():
                self._progress = update
            case CacheStats():
                self._cache = update
            case MemoryStats():
                self._memory = update
            case Tokenized():
                pieces = self.drafts.answer(update)
                if pieces is not None:
                    self.inspector.show(pieces if self.editor.draft else ())
            case TokenizerReady():
                self.drafts.begin()
                self.inspector.show(())
            case ModelReady():
                self._show_model(update)
            case TurnFinished():
                self._finish(update)
            case EngineFailed():
                self._fail(update)
            case Notice():
                self._notice(update)

    def phase_changed(self) -> None:
        """Something else goes on now: other progress, other keys."""
        if self.chat.phase in (Phase.READY, Phase.NO_MODEL):
            self._progress = None
        elif self.chat.phase is Phase.PREFILL:
            self.status.clear_hint()
        self.refresh_bindings()
        self.show_activity()

    def _show_model(self, ready: ModelReady) -> None:
        """Show what was loaded and what its sampler starts with."""
        info = ready.info
        self.title_bar.show_model(info)
        self.sampler_panel.start(ready.sampler, dict(ready.sources))
        self.inspector.set_context(info.context)
        if not self.drafts.ready:
            self.drafts.begin()
            self.inspector.show(())
        count = figures.count
        lines = [self.chat.card_summary] if self.chat.card_summary else []
        context = f"Context {count(info.context)} of the model's {count(info.model_context)} tokens."
        lines.append(f"{info.dtype_reason}. {context}")
        if info.copy_bytes:
            lines.append(info.copy_reason)
        if info.format == "base":
            how = "the text goes on as it is" if self.chat.raw else "it continues a transcript"
            lines.append(f"This is a base model: {how}, and stops only at a limit or where it would speak for you.")
        told = [Remark(line) for line in lines] + [Remark(notice, "warning") for notice in info.notices]
        self.transcript.add(Note(info.name.rpartition("/")[2], told))

    def _finish(self, finished: TurnFinished) -> None:
        """Show the final truth of a reply, and the engine's own figures."""
        first = finished.first_token_seconds if finished.new_tokens else None
        self.title_bar.show_speed(finished.decode_rate, first, final=True)
        self.sampler_panel.show_seed(finished.seed)
        self._figures_at = 0.0
        if view := self.views.get(finished.turn_id):
            turn = self.chat.tree[finished.turn_id]
            context = self.chat.info.context if self.chat.info else 0
            view.finish(turn, remarks(finished, turn, context))
            self._mark_new_text()

    def _fail(self, failed: EngineFailed) -> None:
        """Show an error where it belongs; the traceback goes to the log."""
        _LOG.debug("%s\n%s", failed.summary, failed.detail)
        view = self.views.get(failed.turn_id) if failed.turn_id is not None else None
        if failed.cancelled:
            self._remark(None, [Remark("Loading was stopped. Ctrl+L loads the model again.")], "stopped")
            return
        told = failure(failed)
        if view is not None:
            if view.live:
                view.finish(self.chat.tree[view.turn.turn_id], [])
            if not view.turn.said:
                told.append(TAKEN_BACK if self._take_back(view.turn) else NOTHING_SAID)
        self._remark(failed.turn_id, told, "error")

    def _take_back(self, reply: Turn) -> bool:
        """Put a question that was refused back into the prompt, unless another draft is there or it had a reply."""
        if self.editor.draft or len(self.chat.tree.siblings(reply.turn_id)) > 1 or reply.parent is None:
            return False
        self.editor.put(self.chat.tree[reply.parent].text)
        return True

    def _notice(self, notice: Notice) -> None:
        """Say what a person has to know; once a conversation, though it may hold for every turn of it."""
        told = Remark(notice.text, "warning")
        if notice.turn_id is None or not any(told in view.remarks for view in self.views.values()):
            self._remark(notice.turn_id, [told], "notice")

    def _remark(self, turn_id: int | None, told: list[Remark], label: str) -> None:
        """Put sentences below their turn, or into the transcript where they belong to none."""
        if turn_id is not None and (view := self.views.get(turn_id)):
            view.remark(*told)
        else:
            self.transcript.add(Note(label, told))

    def _show_figures(self) -> None:
        """Draw what changes all the time, now and then."""
        speed = self.chat.speed
        if self.chat.phase is Phase.DECODE:
            self.title_bar.show_speed(speed.rate, speed.first_token_seconds, final=False)
            self.show_activity()
        self.speculation_gauge.show(self.chat.acceptance)
        if self._cache is not None:
            self.cache_gauge.show(self._cache)
            self._cache = None
        if self._memory is not None:
            self.memory_gauge.show(self._memory)
            self._memory = None

    def show_activity(self) -> None:
        """Say what the engine is doing."""
        self.status.show(activity(self.chat, self._progress, self.queued))

    def _mark_new_text(self) -> None:
        self.new_text.display = not self.transcript.is_vertical_scroll_end

    def add_view(self, turn: Turn, label: str) -> None:
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
            reply=self.chat.replies.get(turn.turn_id),
            remarks=self.told.setdefault(turn.turn_id, []),
        )
        self.views[turn.turn_id] = view
        self.transcript.choose(None)
        self.transcript.add(view)

    def hint(self, text: str) -> None:
        """Say something that holds for this moment."""
        self.status.hint(text)

    def show_system_prompt(self) -> None:
        """Put the system prompt into the transcript, if there is one."""
        if system := self.chat.tree.system:
            self.transcript.add(Note("system", [Remark(system)]))
