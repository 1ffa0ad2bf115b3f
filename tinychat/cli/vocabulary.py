"""Tokenizer and chat template without weights: a folder with tokenizer.json alone, or a GGUF file without tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinychat.catalog import ModelCard
from tinychat.cli.console import Notices
from tinychat.cli.files import fetched

if TYPE_CHECKING:
    from tinychat.text.chat_template import ChatTemplate
    from tinychat.text.tokenizer import Tokenizer


class Vocabulary:
    """What text becomes for one model."""

    def __init__(self, card: ModelCard) -> None:
        """Fetch the files if need be and read the tokenizer; print what there is to say about it.

        Raises:
            TinychatError: There is none that tinychat can read.
        """
        from tinychat.text.tokenizer import Tokenizer
        from tinychat.weights.gguf import read_header

        self._card = card
        self._path: Path = fetched(card, weights=False)
        self._metadata: dict[str, Any] | None = None
        if self._path.is_dir():
            self.tokenizer: Tokenizer = Tokenizer.from_folder(self._path)
        else:
            self._metadata = read_header(self._path).metadata
            self.tokenizer = Tokenizer.from_gguf(self._metadata)
        notices = Notices()
        for notice in self.tokenizer.notices:
            notices.line(f"note: {notice}")

    def template(self) -> ChatTemplate:
        """Return the model's own template; the transcript for a base model.

        Raises:
            TinychatError: It can't be read or compiled.
        """
        from tinychat.text.chat_template import ChatTemplate

        own = None
        if self._card.format != "base":
            names = self.tokenizer.special_tokens
            if self._metadata is None:
                own = ChatTemplate.from_folder(self._path, names)
            else:
                own = ChatTemplate.from_gguf(self._metadata, names)
        return own or ChatTemplate.transcript()
