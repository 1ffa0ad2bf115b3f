"""One turn of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tinychat.protocol import FinishReason, Message, SamplerSettings

Role = Literal["user", "assistant"]
Ending = FinishReason | Literal["edited", "cut"]
"""How a reply came to its end: as the engine says; edited: a person wrote it; cut: the program ended in the middle."""

UNFINISHED: Final = frozenset({"cancelled", "length", "context", "failed", "edited", "cut"})
"""Endings after which the model may have more to say."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said once. Immutable: a reply that ends is replaced by its finished self."""

    turn_id: int
    """Unique in its tree, and the id the engine's events carry."""
    parent: int | None
    """The turn it follows; None for the first of a conversation."""
    role: Role
    text: str = ""
    """What was said, raw; of a thinking model, without its thinking."""
    thinking: str = ""
    ids: tuple[int, ...] = ()
    """The token ids of a reply, as sampled; they, not the text, are its truth. Empty where a person wrote it."""
    vocabulary: str = ""
    """Hash of the vocabulary `ids` belong to."""
    reason: Ending | None = None
    """Why a reply ended; None while it is being made, and for what a person asked."""
    seed: int | None = None
    """What the random numbers of a reply started from: one draw a token, the given ones included."""
    model: str = ""
    """Name of the model that made a reply."""
    weights: str = ""
    """Fingerprint of that model's weight files."""
    settings: tuple[tuple[int, SamplerSettings], ...] = ()
    """What a reply's tokens were drawn by: (index of the first token, settings), as they changed."""
    origin: int | None = None
    """The version it began as: the reply that it branches off from or goes on from, the turn that was edited."""
    forced: int = 0
    """How many of a reply's first tokens were given, not drawn."""

    @property
    def said(self) -> bool:
        """Whether the turn holds anything at all; a reply stopped before its first token doesn't."""
        return bool(self.text or self.thinking or self.ids)

    @property
    def unfinished(self) -> bool:
        """Whether it is a reply that can be gone on from."""
        return self.role == "assistant" and self.said and self.reason in UNFINISHED

    def message(self) -> Message:
        """Return the turn as the engine is told of it."""
        return Message(self.role, self.text, self.ids, self.vocabulary, self.thinking)
