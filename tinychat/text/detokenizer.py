"""From ids to text, as they come: whole characters at once, nothing lost, nothing shown twice."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol


class Vocabulary(Protocol):
    """What a detokenizer has to know of the tokenizer."""

    @property
    def special(self) -> frozenset[int]:
        """The control tokens."""

    @property
    def adds_space(self) -> bool:
        """Whether a text's first word gets a space put before it."""

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes a token stands for."""


class Detokenizer:
    """Decodes the ids of one text, one by one.

    Bytes that begin a character are held back until it is whole; bytes that are no UTF-8 become U+FFFD, by the rule of
    maximal subparts (Unicode 3.9, as in every decoder of the field). Joined, the texts are the decode of all ids.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        skip_special: bool = True,
        *,
        shown: Iterable[int] = (),
        starts_text: bool = False,
    ) -> None:
        """Start a text.

        Args:
            vocabulary: The tokenizer.
            skip_special: Whether control tokens are left out.
            shown: Control tokens that are shown all the same.
            starts_text: Whether nothing stands before the first id, so that a space it begins with is the one that the
                vocabulary itself put there. A reply never starts a text.
        """
        self._vocabulary = vocabulary
        self._skipped = vocabulary.special - frozenset(shown) if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_space = starts_text and vocabulary.adds_space

    @property
    def pending(self) -> bool:
        """Whether bytes of an unfinished character are held back."""
        return bool(self._decoder.getstate()[0])

    def step(self, token_id: int) -> str:
        """Return the text that is certain now that `token_id` has come; often empty."""
        # A character may go on after a skipped token, so the decoder isn't reset.
        return "" if token_id in self._skipped else self._shown(self._vocabulary.bytes_of(token_id))

    def flush(self) -> str:
        """Return what an end in the middle of a character leaves."""
        return self._decoder.decode(b"", final=True)

    def _shown(self, data: bytes) -> str:
        if self._drop_space and data:
            self._drop_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)
