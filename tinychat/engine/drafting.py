"""A second, smaller model that guesses ahead: whether it belongs to the first, what it needs, and its loading."""

from __future__ import annotations

from pathlib import Path

import torch

from tinychat.catalog import ModelCard
from tinychat.engine import loading, memory
from tinychat.engine.context import Context
from tinychat.engine.loading import Progress, Session, architecture, policy_of
from tinychat.engine.opening import Opened, open_model
from tinychat.engine.speculation import DraftModel, PromptLookup, Proposer
from tinychat.errors import TinychatError
from tinychat.kernels import Kernels
from tinychat.models.linear import abilities
from tinychat.models.paged_cache import cache_bytes
from tinychat.protocol import LoadModel


class DraftPlan:
    """A draft model whose weights are not read yet."""

    def __init__(self, opened: Opened, card: ModelCard, main: Opened, command: LoadModel) -> None:
        """Judge it by its header.

        Args:
            opened: Of the draft model.
            card: Likewise.
            main: The model it guesses for.
            command: What was asked for; its dtype holds for both.

        Raises:
            TinychatError: Its ids mean other tokens than the model's, or it can't be loaded at all.
        """
        if opened.tokenizer.vocabulary != main.tokenizer.vocabulary:
            raise TinychatError(
                f"{card.name} can't draft for {command.card.name}: its vocabulary is another one.",
                "Choose a smaller model of the same family, or leave --draft out.",
            )
        self.name = card.name
        self._found = architecture(opened)
        self._policy = policy_of(command, abilities())
        outline, planned = self._found.walk(self._policy)
        self._attention = outline.attention
        fp32 = all(form == "fp32" for _, form in planned.forms["layers"])
        self._dtype = torch.float32 if fp32 else torch.bfloat16
        self.positions: int = self._found.config.positions
        """Tokens the draft model was made for."""
        self.weights_bytes = planned.nbytes
        """Bytes its weights will take."""

    def cache_bytes(self, tokens: int) -> int:
        """Return the bytes of its caches beside a context of so many tokens."""
        return cache_bytes(self._attention, min(tokens, self.positions), self._dtype)

    def notices(self) -> tuple[str, ...]:
        """Say what there is to say about it."""
        size = memory.gigabytes(self.weights_bytes)
        said = f"{self.name} drafts tokens ahead; its weights take {size}."
        if self.positions < memory.DEFAULT_CONTEXT:
            said += f" It was made for {self.positions:,} tokens: beyond them nothing is drafted."
        return (said,)

    def build(self, kernels: Kernels, capacity: int, progress: Progress) -> Context:
        """Read the weights, and return empty caches beside a context of `capacity` tokens."""
        with torch.inference_mode():
            model, report = self._found.walk(self._policy, kernels, lambda _: progress("reading the draft model", 1.0))
            self.weights_bytes = report.nbytes
            context = Context(model, min(capacity, self.positions), self._dtype)
            for ids in ([0, 0], [0]):
                context.forward(ids)
            context.clear()
        return context


def load_both(
    opened: Opened,
    draft: Path | None,
    command: LoadModel,
    kernels: Kernels,
    progress: Progress,
    notices: tuple[str, ...],
) -> Session:
    """Load a model, and beside it the draft model whose files are at `draft`, if there is one.

    Raises:
        TinychatError: One of them can't be loaded, they don't fit together, or not into memory.
    """
    if draft is None or command.draft is None:
        return loading.load(opened, command, kernels, progress, notices)
    second = open_model(draft, command.draft)
    with second.checkpoint:
        plan = DraftPlan(second, command.draft, opened, command)
        session = loading.load(opened, command, kernels, progress, (*notices, *plan.notices()), plan)
        session.draft = plan.build(kernels, session.info.context, progress)
        session.draft_bytes = plan.weights_bytes
    return session


def proposer(session: Session) -> Proposer:
    """Return what guesses ahead, should the settings ask for it."""
    return PromptLookup() if session.draft is None else DraftModel(session.draft, session.info.vocabulary_size)
