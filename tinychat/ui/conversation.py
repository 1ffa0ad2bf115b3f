"""What the screen knows: the conversation, the model, and what the engine is doing right now.

A state machine without a screen: actions send commands, events move the phase. Widgets read it and are told by the chat
screen when to look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from itertools import count
from typing import Any, Literal

from tinychat.chats import Tree, Turn
from tinychat.chats.session import Session
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
    PromptRendered,
    SamplerSettings,
    SamplerUsed,
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
        self.raw = self._asked_raw = raw
        self.tree = Tree(system, self._turn_ids)
        self.phase = Phase.LOADING
        self.info: ModelInfo | None = None
        self.has_tokenizer = False
        self.sampler = self._default_sampler = SamplerSettings()
        self._chosen_sampler: SamplerSettings | None = None
        """What a person set, here or when the conversation was kept; None: nothing."""
        self.title = ""
        """What a person called the conversation; empty: it goes by its first question."""
        self._model_before = ""
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
        self._prompt_tokens = 0

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
        """Have the last question answered, again where it was before; return the new reply. The old one stays in the
        tree."""
        return self._generate(self._another_reply())

    def edit(self, turn_id: int, text: str) -> tuple[Turn, Turn | None]:
        """Say something in place of a turn of either side; return its new version and, of a question, the reply that is
        now being made. The old one stays in the tree, with all that followed it.

        Raises:
            ValueError: A reply can't be edited to nothing.
        """
        reply = self.tree[turn_id].role == "assistant"
        turn = self.tree.edit(turn_id, self._as_reply(text) if reply else text)
        return (turn, None) if reply else (turn, self._generate(self.tree.answer()))

    def go_on(self, turn_id: int) -> Turn:
        """Have the model go on from the end of a reply; return the version that does.

        It draws by the seed of the old one, so that it says what that one would have said, had nobody stopped it.
        """
        old = self.tree[turn_id]
        new = self.tree.regenerate(turn_id, origin=turn_id)
        same = self.info is not None and bool(old.ids) and old.vocabulary == self.info.vocabulary
        reply = self._generate(new, branch_of=turn_id, seed=old.seed if same else None, begin=old.message())
        self.replies[reply.turn_id].repeated = self.replies[reply.turn_id].forced = len(old.ids) if same else 0
        return reply

    def dictate(self, text: str) -> Turn:
        """Have the last question answered by a reply that begins with `text`; return it."""
        return self._generate(self._another_reply(), begin=Message("assistant", self._as_reply(text)))

    def undo(self) -> bool:
        """Take the last action back; return whether there was one. Nothing may be being said."""
        return self.tree.undo()

    def redo(self) -> bool:
        """Do again what was taken back last; return whether there was something. Nothing may be being said."""
        return self.tree.redo()

    def fork(self, turn_id: int) -> None:
        """Go on in a new conversation that shares the path to a turn. Nothing may be being said."""
        self.title = f"{self.session().name} (fork)"
        self.tree = self.tree.fork(turn_id)

    # Chats that are kept

    def session(self) -> Session:
        """Return the conversation as it is kept, with what was said so far of the reply being made."""
        state = self.tree.state()
        if self.live is not None and self.live in self.tree:
            said = replace(self.tree[self.live], text="".join(self._said), thinking="".join(self._thought))
            state = replace(state, turns=tuple(said if t.turn_id == said.turn_id else t for t in state.turns))
        weights = self.info.fingerprint if self.info else ""
        return Session(state, self.title, self._load.card.reference, weights, self._chosen_sampler, self.raw)

    def resume(self, session: Session) -> None:
        """Go on with a conversation that was kept; a reply under way is stopped. Its settings hold, but for those that
        were asked for by flag."""
        self.start_anew()
        self.tree = Tree.restored(session.tree, self._turn_ids)
        self.title, self.raw = session.title, session.raw
        self._model_before = session.model
        self._chosen_sampler = session.sampler
        if self.info is not None:
            self.set_sampler(self._by_flag(session.sampler or self._default_sampler))
            self._chosen_sampler = session.sampler

    def another_model(self) -> str:
        """Return the model that the conversation was with, where that is not this one; else ""."""
        return "" if self._model_before in ("", self._load.card.reference) else self._model_before

    def _by_flag(self, sampler: SamplerSettings) -> SamplerSettings:
        return replace(sampler, **dict[str, Any](self._load.sampler))

    def branch(self, turn_id: int, index: int, token_id: int) -> Turn:
        """Have a reply made again that begins like `turn_id` and says `token_id` in place of its token `index`.

        The old reply stays. The new one starts from the same seed, so that where the two agree, they draw the same
        random numbers. Nothing may be being said, and the old reply has to be of this vocabulary: see `can_branch`.
        """
        old = self.tree[turn_id]
        same = tuple(token.token_id for token in self.replies[turn_id].tokens[:index])
        new = self.tree.regenerate(turn_id, origin=turn_id)
        return self._generate(new, (*same, token_id), branch_of=turn_id, seed=old.seed)

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
        if self.live is not None:
            self.stop()
            self._end_live("cancelled")
        self.tree = Tree(self.tree.system, self._turn_ids)
        self.replies = {}
        self.title = self._model_before = ""
        self.raw = self._asked_raw

    def set_sampler(self, sampler: SamplerSettings) -> None:
        """Use other settings from the very next token on."""
        self.sampler = self._chosen_sampler = sampler
        self._send(SetSampler(sampler))

    # Events

    def take(self, update: Update) -> None:
        """Follow what the engine says. Events of turns and loads that are not ours are not heard."""
        match update:
            case TokenizerReady(load_id=self.load_id):
                self.has_tokenizer = True
            case ModelReady(load_id=self.load_id, info=info, sampler=sampler):
                self.info, self.sampler, self.phase = info, sampler, Phase.READY
                self._default_sampler = sampler
                if self._chosen_sampler is not None:
                    self.sampler = self._by_flag(self._chosen_sampler)
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
            case PromptRendered(turn_id=self.live, ids=ids):
                self._prompt_tokens = len(ids)
            case SamplerUsed(turn_id=self.live, index=index, sampler=sampler) if update.turn_id in self.tree:
                self.tree.drawn_by(update.turn_id, index, sampler)
            case PrefillProgress(turn_id=self.live):
                if reply := self.replies.get(update.turn_id):
                    reply.prefill = update
                    if self._prompt_tokens:
                        reply.forced = update.total - self._prompt_tokens
            case Paused(turn_id=self.live, index=index) if self.phase is not Phase.STOPPING:
                self.phase = Phase.DECODE
                self.pacing.waits_at = index
                self.speed.rest()
            case TurnFinished():
                self._finish(update)
            case EngineFailed():
                self._fail(update)

    def _another_reply(self) -> Turn:
        """Add an empty reply to the last question, beside those it has."""
        head = self.tree.head
        asked = head is not None and self.tree[head].role == "user"
        return self.tree.answer() if asked else self.tree.regenerate()

    def _as_reply(self, text: str) -> str:
        """Return what a person wrote for the model as the model would have said it: in a transcript, after a space."""
        transcript = self.info is not None and self.info.format == "base" and not self.raw
        return f" {text}" if transcript and text and not text[0].isspace() else text

    def _generate(
        self,
        reply: Turn,
        forced: tuple[int, ...] = (),
        branch_of: int | None = None,
        seed: int | None = None,
        begin: Message | None = None,
    ) -> Turn:
        """Send the command that makes `reply`, beginning with the ids `forced` or with what `begin` says."""
        messages = self.tree.messages_for(reply.turn_id)
        if self.raw:
            # What stands in the transcript, joined, is the text to go on with; a system prompt has no place in it.
            messages = (Message("user", "".join(turn.text for turn in self.tree.path()[:-1])),)
        limits = self._limits
        if limits.max_tokens is None and self.info is not None:
            limits = replace(limits, max_tokens=self.info.max_tokens)
        self._said, self._thought, self._prompt_tokens = [], [], 0
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
                begin=begin,
            )
        )
        return reply

    def _finish(self, finished: TurnFinished) -> None:
        if finished.turn_id in self.tree:
            info = self.info
            made_by = (info.vocabulary, info.name, info.fingerprint) if info else ("", self.name)
            self.tree.finish(finished, *made_by)
            if reply := self.replies.get(finished.turn_id):
                reply.finished = finished
        if finished.turn_id == self.live:
            self.live, self.phase = None, Phase.READY
            self.pacing.end()

    def _fail(self, failed: EngineFailed) -> None:
        if failed.turn_id is not None and failed.turn_id != self.live:
            return  # `TurnFinished` came before and has ended the turn
        if self.live is not None:
            self._end_live("failed")
            self.live, self.phase = None, Phase.READY
            self.pacing.end()
        elif failed.load_id in (None, self.load_id) and self.info is None:
            self.phase = Phase.NO_MODEL

    def _end_live(self, reason: Literal["failed", "cancelled"]) -> None:
        """Keep what was said so far of the reply being made, of which the tree will hear no more."""
        if self.live is not None and self.live in self.tree:
            self.tree.fail(self.live, "".join(self._said), "".join(self._thought), reason)
