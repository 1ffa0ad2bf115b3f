"""What a text is cut into before merging, by the library's own normalizer and pre-tokenizer.

The library doesn't say it: it cuts and merges in one go. So it is given a model that knows nothing but bytes and merges
none of them; of each piece it returns the bytes, and everything before the merging is done as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import tokenizers
from tokenizers.models import BPE

from tinychat.text.parts import TokenizerParts
from tinychat.text.pipelines import Start, pipelines

_BYTES: Final = 256
"""Ids of the cutting pipelines below this are bytes."""


@dataclass(frozen=True, slots=True)
class PreToken:
    """A piece of text that is merged for itself, or a token that was found in the text."""

    spelled: str
    """As the vocabulary spells it; what was typed, of a token that was found."""
    ids: tuple[int, ...]
    """The tokens that the library makes of it; none where all of its characters are lost."""
    found: bool = False
    """Whether it was found in the text before anything was cut."""


class PreTokens:
    """Cuts text."""

    def __init__(self, parts: TokenizerParts, merging: Mapping[Start, tokenizers.Tokenizer]) -> None:
        """Prepare to cut.

        Args:
            parts: The tokenizer's.
            merging: The pipelines that text goes through.
        """
        self._merging = merging
        only_bytes = BPE({f"<0x{byte:02X}>": byte for byte in range(_BYTES)}, [], byte_fallback=True)
        self._cutting = pipelines(replace(parts, model=only_bytes))
        self._added = {
            place: token_id
            for token_id, token in parts.added.items()
            if (place := self._cutting["text"].token_to_id(token.content)) is not None and place >= _BYTES
        }
        """The id of each token that is found, by the id that the cutting pipelines give it."""

    def of(self, text: str, start: Start) -> Iterator[PreToken]:
        """Yield what a plain text is cut into, in order.

        Args:
            text: Without lone surrogates.
            start: What stands before it.
        """
        ids: dict[int | None, list[int]] = {}
        for word, token_id, _ in _tokens(self._merging[start].encode(text, add_special_tokens=False)):
            ids.setdefault(word, []).append(token_id)
        cut = _tokens(self._cutting[start].encode(text, add_special_tokens=False))
        for word, parts in groupby(cut, key=lambda token: token[0]):
            (_, first, (low, high)), *more = parts
            if first in self._added:
                yield PreToken(text[low:high], (self._added[first],), found=True)
            else:
                spelled = bytes([first, *(token_id for _, token_id, _ in more)]).decode()
                yield PreToken(spelled, tuple(ids.get(word, ())))


def _tokens(encoding: tokenizers.Encoding) -> Iterator[tuple[int | None, int, tuple[int, int]]]:
    """Yield (number of the piece, id, (start, end) in the text) of each token."""
    return zip(encoding.word_ids, encoding.ids, encoding.offsets, strict=True)
