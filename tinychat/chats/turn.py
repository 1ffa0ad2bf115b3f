"""One turn of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinychat.protocol import FinishReason, Message

Role = Literal["user", "assistant"]


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
    """The token ids of a reply, as they were sampled; they, not the text, are its truth."""
    vocabulary: str = ""
    """Hash of the vocabulary `ids` belong to."""
    reason: FinishReason | None = None
    """Why a reply ended; None while it is being made, and for what a person said."""
    seed: int | None = None
    """What the random numbers of a reply started from."""

    @property
    def said(self) -> bool:
        """Whether the turn holds anything at all; a reply stopped before its first token doesn't."""
        return bool(self.text or self.thinking or self.ids)

    def message(self) -> Message:
        """Return the turn as the engine is told of it."""
        return Message(self.role, self.text, self.ids, self.vocabulary, self.thinking)
