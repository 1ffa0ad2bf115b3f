"""A conversation as it is kept: the tree of turns, and what a person needs to go on with it another day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinychat.chats.tree import TreeState
from tinychat.protocol import SamplerSettings

TITLE_CHARACTERS: Final = 60
"""Of a title that is taken from the first question."""


@dataclass(frozen=True, slots=True)
class Session:
    """All that is kept of one conversation."""

    tree: TreeState
    title: str = ""
    """What a person called it; empty: it goes by its first question."""
    model: str = ""
    """The model that was talked to last, as `tinychat run` takes it."""
    weights: str = ""
    """Fingerprint of that model's weight files."""
    sampler: SamplerSettings | None = None
    """The settings in force; None: none were touched."""
    raw: bool = False
    """Whether the text is continued as it is, without a template."""

    @property
    def name(self) -> str:
        """What the conversation is called: its title, or the beginning of its first question."""
        return self.title or title_of(self.tree.turns[0].text if self.tree.turns else "")


def title_of(text: str) -> str:
    """Return the beginning of a text, on one line."""
    line = " ".join(text[: 20 * TITLE_CHARACTERS].split())
    return line if len(line) <= TITLE_CHARACTERS else f"{line[: TITLE_CHARACTERS - 1].rstrip()}…"
