"""What a person looks at inside the engine: the view that is open, the token in focus, and what was asked about it.

A state machine without a screen, like the conversation it looks into. Views read it; `ask` sends what the open view
needs and nothing else, so that the engine pays for a view only while it is open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tinychat.protocol import (
    Attended,
    Bandwidth,
    CacheMapped,
    CacheStats,
    Command,
    DescribePrompt,
    Explain,
    Explained,
    Inspect,
    Lens,
    Lensed,
    MapCache,
    ModelReady,
    Probed,
    Profiled,
    PromptDescribed,
    SetViews,
    TextExplained,
    TokenizerReady,
    View,
)
from tinychat.ui.attention_focus import AttentionFocus
from tinychat.ui.bridge import Update
from tinychat.ui.conversation import Conversation
from tinychat.ui.inquiry import Inquiry
from tinychat.ui.measures import MEASURES, Measure
from tinychat.ui.reply_tokens import ReplyTokens
from tinychat.ui.typed_walk import TypedWalk

VIEWS: Final = {
    "tokens": "t",
    "why": "w",
    "layers": "l",
    "lens": "g",
    "attention": "a",
    "cache": "k",
    "prompt": "p",
    "time": "m",
    "bpe": "b",
}
"""The names of the views, as `run --view` takes them, and the key of each."""
_COSTLY: Final[dict[str, View]] = {"layers": "layers", "attention": "attention", "time": "time"}
_MAP_EVERY: Final = 0.5
"""Seconds between two maps of the cache while a reply is made."""
_END: Final = 2**31
"""A position past every sequence."""
_NEAR: Final = 128
"""Positions to either side that certainly are among those told by name."""


class Glass:
    """Belongs to the UI thread."""

    def __init__(self, send: Callable[[Command], None], chat: Conversation) -> None:
        self._send = send
        self.chat = chat
        self.view = ""
        """Name of the open view, empty for none."""
        self.turn_id: int | None = None
        """The reply looked at."""
        self.measure: Measure = MEASURES[0]
        """What tokens are coloured by."""
        self.by_sliders = False
        """Whether the sampler's chain is shown by the sliders as they stand, not as it was."""
        self.explained: Explained | None = None
        self.described: PromptDescribed | None = None
        self.inspected: Probed | None = None
        self.lensed: Lensed | None = None
        self.bandwidth: Bandwidth | None = None
        self.cache_bytes = 0
        """What the caches hold now."""
        self.mapped: CacheMapped | None = None
        self.map_focus: int | None = None
        """The position of the cache that a person looks at; None follows the last."""
        self.typed = TypedWalk(send, chat)
        self.heads = AttentionFocus(send)
        self._why = Inquiry(send)
        self._layers = Inquiry(send)
        self._lens = Inquiry(send)
        self._prompt = Inquiry(send)
        self._map = Inquiry(send)
        self._looked: frozenset[View] = frozenset()

    @property
    def reply(self) -> ReplyTokens | None:
        """The tokens of the reply looked at."""
        return None if self.turn_id is None else self.chat.replies.get(self.turn_id)

    @property
    def paused_here(self) -> bool:
        """Whether the reply looked at waits before its next token."""
        return self.chat.pacing.paused and self.chat.live == self.turn_id

    @property
    def followed(self) -> bool:
        """Whether tokens come and the newest is followed: what is asked of one would be of the past when answered."""
        reply = self.reply
        return reply is not None and self.chat.live == self.turn_id and reply.focus is None and not self.paused_here

    @property
    def why_index(self) -> int:
        """Index of the token that is explained: the one in focus, or while the reply waits, the one that is next."""
        reply = self.reply
        if reply is None:
            return -1
        if self.paused_here and (reply.focus is None or reply.focus > reply.newest):
            return reply.newest + 1
        return reply.at

    @property
    def map_at(self) -> int:
        """The position of the cache looked at; 0 where it holds nothing."""
        last = max(0, self.mapped.length - 1 if self.mapped is not None else 0)
        return last if self.map_focus is None else min(self.map_focus, last)

    # Actions

    def open(self, view: str) -> None:
        """Open a view; an empty name closes the one that is open."""
        self.view = view
        wanted = frozenset({_COSTLY[view]} if view in _COSTLY else ())
        if wanted != self._looked:
            self._looked = wanted
            self._send(SetViews(wanted))

    def look_at(self, turn_id: int | None) -> bool:
        """Look at a reply; return whether that is another than before."""
        if turn_id == self.turn_id:
            return False
        self.turn_id = turn_id
        self.by_sliders = False
        return True

    def next_measure(self) -> None:
        """Colour tokens by something else."""
        self.measure = MEASURES[(MEASURES.index(self.measure) + 1) % len(MEASURES)]

    def step(self, steps: int) -> None:
        """Look at a token before or after the one that the open view shows: only "why" has one not drawn yet."""
        if reply := self.reply:
            self.focus((self.why_index if self.view == "why" else reply.at) + steps)

    def focus(self, index: int) -> None:
        """Look at a token; the newest one of a reply that is being made is followed."""
        if reply := self.reply:
            last = reply.newest + (self.paused_here and self.view == "why")
            index = min(max(index, 0), max(last, 0))
            reply.focus = None if index == last and self.chat.live == self.turn_id else index
            self.by_sliders = self.by_sliders and self.paused_here

    def ask(self) -> None:
        """Ask what the open view lacks; called again and again."""
        if self.view == "bpe":
            self.typed.ask()
        elif self.view == "cache":
            self._ask_map()
        reply = self.reply
        if reply is None or self.turn_id is None:
            return
        turn_id = self.turn_id
        if self.view == "why" and (index := self.why_index) >= 0:
            sampler = self.chat.sampler if self.by_sliders else None
            said = index <= reply.newest
            self._why.want((turn_id, index, sampler, said), lambda n: Explain(n, turn_id, index, sampler))
        elif self.view == "layers" and (at := reply.at) >= 0 and at not in reply.probes:
            if not self.followed:
                self._layers.want((turn_id, at), lambda n: Inspect(n, turn_id, at))
        elif self.view == "lens" and (at := reply.at) >= 0 and not self.followed:
            self._lens.want((turn_id, at), lambda n: Lens(n, turn_id, at))
        elif self.view == "attention" and (at := reply.at) >= 0 and not self.followed:
            self.heads.ask(turn_id, at)
        if self.view == "prompt" or (self.view == "attention" and reply.tokens):
            rendered = reply.prefill is not None or bool(reply.tokens)
            self._prompt.want((turn_id, rendered), lambda n: DescribePrompt(n, turn_id))

    def _ask_map(self) -> None:
        """Ask for the map of the cache, where something may have changed since the last, or names are lacking."""
        newest = next(reversed(self.chat.replies.values()), None)
        made = (newest.turn_id, len(newest.tokens), newest.prefill, newest.finished is not None) if newest else None
        near = None if self.map_focus is None else self.map_focus // _NEAR
        position = _END if self.map_focus is None else self.map_focus
        least = _MAP_EVERY if self.chat.busy else 0.0
        self._map.want((made, near), lambda n: MapCache(n, position), least)

    # Events

    def take(self, update: Update) -> None:
        """Take an answer, or what the engine tells while a view is open."""
        match update:
            case Explained() if self._why.answered(update.request_id):
                self.explained = update
            case PromptDescribed() if self._prompt.answered(update.request_id):
                self.described = update
            case CacheMapped() if self._map.answered(update.request_id):
                self.mapped = update
            case TextExplained() | TokenizerReady():
                self.typed.take(update)
            case Probed():
                self._take_probed(update)
            case Lensed() if self._lens.answered(update.request_id):
                self.lensed = update
            case Attended():
                self.heads.take(update)
            case Profiled(turn_id=turn_id):
                if reply := self.chat.replies.get(turn_id):
                    reply.profiles.append(update)
            case Bandwidth():
                self.bandwidth = update
            case CacheStats(layers=layers):
                self.cache_bytes = sum(layer.used_bytes for layer in layers)
            case ModelReady(info=info):
                self._start_anew(info.layers)

    def _take_probed(self, probed: Probed) -> None:
        if probed.request_id is not None and not self._layers.answered(probed.request_id):
            return
        if probed.problem:
            self.inspected = probed
        elif reply := self.chat.replies.get(probed.turn_id):
            reply.keep_probe(probed)

    def _start_anew(self, layers: int) -> None:
        """Another model, of so many layers, is there: what was asked of the one before is not its answer."""
        for inquiry in (self._why, self._layers, self._lens, self._prompt, self._map):
            inquiry.forget()
        self.heads.start_anew(layers)
        self.explained = self.described = self.inspected = self.lensed = None
        self.bandwidth = self.mapped = self.map_focus = None
        if self._looked:
            self._send(SetViews(self._looked))
