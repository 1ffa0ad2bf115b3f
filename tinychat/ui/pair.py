"""Two conversations, A and B, that are asked the same: what each says, and how far apart they are.

Each has its own engine, history and sampler; the engines share a thread and keep in step. It knows no screen.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Final, TypeVar

from tinychat.chats import Turn
from tinychat.protocol import MAX_SEED, Divergence, PromptRendered, SamplerSettings
from tinychat.ui.alignment import Alignment
from tinychat.ui.bridge import Update
from tinychat.ui.conversation import Conversation, Phase

NAMES: Final = ("A", "B")
Answer = TypeVar("Answer")
_SHORT: Final = {"repetition_penalty": "repetition", "frequency_penalty": "frequency", "presence_penalty": "presence"}


class Pair:
    """Belongs to the UI thread."""

    def __init__(self, first: Conversation, second: Conversation) -> None:
        """Prepare it; `start_loading` begins."""
        self.sides = (first, second)
        self.alignment: Alignment | None = None
        """Of the replies to the last question; None where there are none, or one only."""
        self.divergences: list[float] = []
        """KL(A || B) at each token of these replies, as long as it means something, in nats."""
        self._prompts: list[tuple[int, ...] | None] = [None, None]
        self._seeds: list[int | None] = [None, None]
        """What a person asked for."""

    # Actions

    def start_loading(self) -> None:
        """Load what isn't loaded: A, then B. Two downloads of the same files at once would be in each other's way, and
        what A has loaded B may share."""
        for chat in self.sides:
            if chat.info is None:
                chat.phase, chat.load_id = Phase.LOADING, 0
        next(chat for chat in self.sides if chat.info is None).start_loading()

    def ask(self, text: str) -> list[tuple[Turn, Turn] | None]:
        """Ask both; return each side's question and reply, None for one that has no model."""
        return self._begin(lambda chat: chat.ask(text))

    def regenerate(self) -> list[Turn | None]:
        """Have both answer again; return each side's reply."""
        return self._begin(lambda chat: chat.regenerate() if chat.tree.head is not None else None)

    def stop(self) -> bool:
        """Stop both, replies or loads; return whether there was anything to stop."""
        stopped = False
        for chat in self.sides:
            if chat.phase is Phase.LOADING and not chat.load_id:
                chat.phase = Phase.NO_MODEL
            else:
                stopped = chat.stop() or stopped
        return stopped

    def start_anew(self) -> None:
        """Begin empty conversations."""
        for chat in self.sides:
            chat.start_anew()
        self.alignment = None
        self.divergences = []

    def hold(self) -> None:
        """Have both replies wait, or go on."""
        holding = not any(chat.pacing.holding for chat in self.sides)
        for chat in self.sides:
            chat.pacing.hold(holding, chat.busy)

    def step(self) -> None:
        """Have both say one token more, and wait."""
        for chat in self.sides:
            if chat.busy:
                chat.pacing.step("step")

    # What there is to know

    @property
    def busy(self) -> bool:
        """Whether one of them is answering."""
        return any(chat.busy for chat in self.sides)

    @property
    def loading(self) -> bool:
        """Whether one of them is being loaded, or about to be."""
        return any(chat.phase is Phase.LOADING for chat in self.sides)

    @property
    def ready(self) -> bool:
        """Whether one at least can be asked, and the other isn't in the middle of something."""
        phases = [chat.phase for chat in self.sides]
        return Phase.READY in phases and set(phases) <= {Phase.READY, Phase.NO_MODEL}

    @property
    def paused(self) -> bool:
        """Whether they wait."""
        return any(chat.pacing.paused for chat in self.sides)

    @property
    def same_vocabulary(self) -> bool:
        """Whether their ids mean the same tokens."""
        first, second = (chat.info for chat in self.sides)
        return first is not None and second is not None and first.vocabulary == second.vocabulary

    @property
    def same_prompt(self) -> bool:
        """Whether both were fed the same ids for the last question; so, too, while that isn't known."""
        first, second = self._prompts
        return first is None or second is None or first == second

    def differences(self, side: int) -> list[str]:
        """Name the settings of one sampler that are not as the other's: "temperature 0"."""
        own, other = self.sides[side].sampler, self.sides[1 - side].sampler
        if any(chat.info is None for chat in self.sides):
            return []
        names = [field.name for field in fields(SamplerSettings) if field.name not in ("seed", "logit_bias")]
        told = [
            f"{_SHORT.get(name, name).replace('_', '-')} {_shown(getattr(own, name))}"
            for name in names
            if getattr(own, name) != getattr(other, name)
        ]
        return [*told, f"seed {own.seed}"] if None not in self._seeds and own.seed != other.seed else told

    def divergence(self) -> tuple[float, float, int] | None:
        """Return the mean of KL(A || B) over the tokens, the largest, and which token has that; None: there is none."""
        if not self.divergences:
            return None
        most = max(self.divergences)
        return math.fsum(self.divergences) / len(self.divergences), most, self.divergences.index(most)

    # Events

    def take(self, side: int, update: Update) -> None:
        """Follow what one of the engines says."""
        chat = self.sides[side]
        before = chat.phase
        chat.take(update)
        if before is Phase.LOADING and chat.phase is not Phase.LOADING:
            self._seeds[side] = chat.sampler.seed
        match update:
            case PromptRendered(turn_id=turn_id, ids=ids) if turn_id == chat.live:
                self._prompts[side] = ids
            case Divergence(turn_id=turn_id, nats=nats) if self._is_last(side, turn_id):
                self.divergences.append(nats)
        other = self.sides[1 - side]
        if chat.phase is not Phase.LOADING and other.phase is Phase.LOADING and not other.load_id:
            other.start_loading()

    def _is_last(self, side: int, turn_id: int) -> bool:
        return self.alignment is not None and self.alignment.replies[side].turn_id == turn_id

    def _begin(self, begin: Callable[[Conversation], Answer]) -> list[Answer | None]:
        """Begin a reply of each side that has a model, from one seed."""
        common = next((seed for seed in self._seeds if seed is not None), None)
        drawn = secrets.randbelow(MAX_SEED + 1) if common is None else common
        self._prompts, self.divergences = [None, None], []
        begun: list[Answer | None] = []
        for chat, seed in zip(self.sides, self._seeds, strict=True):
            chat.sampler = replace(chat.sampler, seed=drawn if seed is None else seed)
            begun.append(begin(chat) if chat.phase is Phase.READY else None)
        replies = [None if chat.live is None else chat.replies[chat.live] for chat in self.sides]
        self.alignment = None
        if replies[0] is not None and replies[1] is not None:
            self.alignment = Alignment(replies[0], replies[1])
        return begun


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
