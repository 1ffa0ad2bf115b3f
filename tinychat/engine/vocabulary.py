"""Tokenizer and chat template of a model, whichever files they are in. Needs no weights and no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinychat.catalog import ModelCard
from tinychat.text.chat_template import ChatTemplate
from tinychat.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What text becomes for one model."""

    tokenizer: Tokenizer
    path: Path
    """A folder with tokenizer.json, or a .gguf file."""
    metadata: Mapping[str, Any] | None
    """Of a .gguf file's header; None for a folder."""

    @classmethod
    def read(cls, path: Path, metadata: Mapping[str, Any] | None) -> Vocabulary:
        """Read the tokenizer of a folder, or of the metadata of a .gguf file.

        Raises:
            TinychatError: There is none that tinychat can read.
        """
        tokenizer = Tokenizer.from_folder(path) if metadata is None else Tokenizer.from_gguf(metadata)
        return cls(tokenizer, path, metadata)

    def own_template(self, card: ModelCard) -> ChatTemplate | None:
        """Return the model's own chat template; None where it has none, or where the card says base.

        Raises:
            TinychatError: It can't be read or compiled.
        """
        if card.format == "base":
            return None
        names = self.tokenizer.special_tokens
        if self.metadata is None:
            return ChatTemplate.from_folder(self.path, names)
        return ChatTemplate.from_gguf(self.metadata, names)
