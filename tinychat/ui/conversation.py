"""What the screen knows: the conversation, the model, and what the engine is doing right now.

A state machine without a screen: actions send commands, events move the phase. Widgets read it and are told by the chat
screen when to look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from itertools import count

from tinychat.chats import Tree, Turn
from tinychat.protocol import (
    Cancel,
    Command,
    EngineFailed,
    Generate,
    Limits,
    LoadModel,
    Message,
    ModelInfo,
    ModelReady,
    Paused,
    PrefillProgress,
    SamplerSettings,
    SetSampler,
    TokenizerReady,
    TurnFinished,
)
from tinychat.ui.acceptance import Acceptance
from tinychat.ui.bridge import TokenRun, Update
from tinychat.ui.pacing import Pacing
from tinychat.ui.reply_tokens import ReplyTokens
from tinychat.ui.speedometer import Speedometer


class Phase(Enum):
    """What the engine is doing."""

    LOADING = "loading"
    READY = "ready"
    PREFILL = "prefill"
    DECODE = "decode"
    STOPPING = "stopping"
    """A reply or a load was cancelled, and the engine has not said yet that it stopped."""
    NO_MODEL = "no model"
    """Loading failed or was stopped."""


class Conversation:
    """One chat with one model. Belongs to the UI thread."""

    def __init__(
        self,
        send: Callable[[Command], None],
        load: LoadModel,
        *,
        system: str = "",
        limits: Limits | None = None,
        think: bool | None = None,
        raw: bool = False,
    ) -> None:
        """Prepare a conversation; `start_loading` begins it.

        Args:
            send: Puts a command into the engine's inbox.
            load: The model to talk to. Its load_id is replaced by one of our own.
            system: The system prompt, empty for none.
            limits: When replies end.
            think: What thinking models are told; None leaves it to their template.
            raw: Continue the text as it is instead of rendering turns.
        """
        self._send = send
        self._load = load
        self._load_ids = count(1)
        self._turn_ids = count(1)
        self._limits = limits or Limits()
        self._think = think
        self.raw = raw
        self.tree = Tree(system, self._turn_ids)
        self.phase = Phase.LOADING
        self.info: ModelInfo | None = None
        self.has_tokenizer = False
        self.sampler = SamplerSettings()
        self.live: int | None = None
        """The reply being made."""
        self.load_id = 0
        self.speed = Speedometer()
        self.acceptance = Acceptance()
        self.pacing = Pacing(send)
        self.replies: dict[int, ReplyTokens] = {}
        """The tokens of each reply of the conversation, its versions included, by its turn."""
        self._said: list[str] = []
        self._thought: list[str] = []

    @property
    def name(self) -> str:
        """What the model is called."""
        return self.info.name if self.info else self._load.card.name

    @property
    def card_summary(self) -> str:
        """The catalogue's line about the model, empty where it has none."""
        return self._load.card.summary

    @property
    def busy(self) -> bool:
        """Whether a reply is being made."""
        return self.live is not None

    # Actions

    def start_loading(self) -> None:
        """Fetch and load the model."""
        self.load_id = next(self._load_ids)
        self.phase = Phase.LOADING
        self._send(replace(self._load, load_id=self.load_id))

    def ask(self, text: str) -> tuple[Turn, Turn]:
        """Say something to the model; return the question and the reply that is now being made."""
        question = self.tree.ask(text)
        return question, self._generate(self.tree.answer())

    def regenerate(self) -> Turn:
        """Have the last question answered again; return the new reply. The old one stays in the tree."""
        return self._generate(self.tree.regenerate())

    def branch(self, turn_id: int, index: int, token_id: int) -> Turn:
        """Have a reply made again that begins like `turn_id` and says `token_id` in place of its token `index`.

        The old reply stays. The new one starts from the same seed, so that where the two agree, they draw the same
        random numbers. Nothing may be being said, and the old reply has to be of this vocabulary: see `can_branch`.
        """
        old = self.tree[turn_id]
        same = tuple(token.token_id for token in self.replies[turn_id].tokens[:index])
        return self._generate(self.tree.regenerate(turn_id), (*same, token_id), branch_of=turn_id, seed=old.seed)

    def can_branch(self, turn_id: int) -> bool:
        """Whether the tokens of a reply are tokens of the model that is loaded."""
        reply = self.replies.get(turn_id)
        return reply is not None and self.info is not None and reply.vocabulary == self.info.vocabulary

    def switch_version(self, turn_id: int, steps: int) -> int | None:
        """Put a version of a reply in its place, with what followed that one; return its turn.

        None where there is no version so many steps further.
        """
        versions = [turn.turn_id for turn in self.tree.versions(turn_id)]
        at = versions.index(turn_id) + steps
        if not 0 <= at < len(versions) or not steps:
            return None
        self.tree.choose(versions[at])
        return versions[at]

    def stop(self) -> bool:
        """Stop the reply or the load that is under way; return whether there was one that had not been stopped yet."""
        if self.phase is Phase.STOPPING:
            return False
        if self.live is not None:
            self._send(Cancel(turn_id=self.live))
        elif self.phase is Phase.LOADING:
            self._send(Cancel(load_id=self.load_id))
        else:
            return False
        self.phase = Phase.STOPPING
        return True

    def start_anew(self) -> None:
        """Begin an empty conversation with the same model and system prompt; a reply under way is stopped."""
        if self.busy:
            self.stop()
        self.tree = Tree(self.tree.system, self._turn_ids)
        self.replies = {}

    def set_sampler(self, sampler: SamplerSettings) -> None:
        """Use other settings from the very next token on."""
        self.sampler = sampler
        self._send(SetSampler(sampler))

    # Events

    def take(self, update: Update) -> None:
        """Follow what the engine says. Events of turns and loads that are not ours are not heard."""
        match update:
            case TokenizerReady(load_id=self.load_id):
                self.has_tokenizer = True
            case ModelReady(load_id=self.load_id, info=info, sampler=sampler):
                self.info, self.sampler, self.phase = info, sampler, Phase.READY
                self.has_tokenizer = True
            case TokenRun(turn_id=self.live):
                if self.phase is Phase.PREFILL:
                    self.phase = Phase.DECODE
                self.speed.add(update.count)
                self.acceptance.add(update)
                self.pacing.went_on()
                if reply := self.replies.get(update.turn_id):
                    reply.add(update.tokens)
                self._said.append(update.text)
                self._thought.append(update.thinking)
            case PrefillProgress(turn_id=self.live):
                if reply := self.replies.get(update.turn_id):
                    reply.prefill = update
            case Paused(turn_id=self.live, index=index) if self.phase is not Phase.STOPPING:
                self.phase = Phase.DECODE
                self.pacing.waits_at = index
            case TurnFinished():
                self._finish(update)
            case EngineFailed():
                self._fail(update)

    def _generate(
        self, reply: Turn, forced: tuple[int, ...] = (), branch_of: int | None = None, seed: int | None = None
    ) -> Turn:
        """Send the command that makes `reply`, beginning with the ids `forced`."""
        messages = self.tree.messages_for(reply.turn_id)
        if self.raw:
            # What stands in the transcript, joined, is the text to go on with; a system prompt has no place in it.
            messages = (Message("user", "".join(turn.text for turn in self.tree.path()[:-1])),)
        limits = self._limits
        if limits.max_tokens is None and self.info is not None:
            limits = replace(limits, max_tokens=self.info.max_tokens)
        self._said, self._thought = [], []
        self.live, self.phase = reply.turn_id, Phase.PREFILL
        self.speed.start()
        self.acceptance.start()
        vocabulary = self.info.vocabulary if self.info else ""
        self.replies[reply.turn_id] = ReplyTokens(reply.turn_id, vocabulary, len(forced), branch_of)
        sampler = self.sampler if seed is None else replace(self.sampler, seed=seed)
        self._send(
            Generate(
                reply.turn_id,
                messages,
                sampler,
                limits,
                forced,
                raw=self.raw,
                think=self._think,
                branch_of=branch_of,
                pace=self.pacing.begin(),
            )
        )
        return reply

    def _finish(self, finished: TurnFinished) -> None:
        if finished.turn_id in self.tree:
            self.tree.finish(finished, self.info.vocabulary if self.info else "")
            if reply := self.replies.get(finished.turn_id):
                reply.finished = finished
        if finished.turn_id == self.live:
            self.live, self.phase = None, Phase.READY
            self.pacing.end()

    def _fail(self, failed: EngineFailed) -> None:
        if failed.turn_id is not None and failed.turn_id != self.live:
            return  # `TurnFinished` came before and has ended the turn
        if self.live is not None:
            if self.live in self.tree:
                self.tree.fail(self.live, "".join(self._said), "".join(self._thought))
            self.live, self.phase = None, Phase.READY
            self.pacing.end()
        elif failed.load_id in (None, self.load_id) and self.info is None:
            self.phase = Phase.NO_MODEL
