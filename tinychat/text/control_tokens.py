"""Finding control tokens in a text that is allowed to hold them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tokenizers import AddedToken

_SPACES: Final = frozenset(map(chr, [*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)])) | frozenset(
    "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space, which is what the library takes in; Python's own idea of space has four characters more."""


@dataclass(frozen=True, slots=True)
class ControlMatch:
    """A control token in a text: text[start:end], the spaces it takes in with it included."""

    start: int
    end: int
    token_id: int


class ControlTokens:
    """Finds control tokens as the `tokenizers` library does: the leftmost first, of those the longest; a token may want
    to stand alone as a word, and may take in the spaces before or after it."""

    def __init__(self, tokens: Mapping[int, AddedToken]) -> None:
        """Store the control tokens, by id."""
        self._tokens = {token.content: (token_id, token) for token_id, token in tokens.items() if token.content}
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def find(self, text: str, within: Iterable[tuple[int, int]] | None = None) -> list[ControlMatch]:
        """Return the control tokens in `text`, in order.

        Args:
            text: The whole text.
            within: The stretches, in order, that a token has to lie in; the spaces it takes in may lie outside.
        """
        found: list[ControlMatch] = []
        free = 0  # where the last match ended
        for low, high in [(0, len(text))] if within is None else within:
            for match in self._pattern.finditer(text, low, high):
                token_id, token = self._tokens[match[0]]
                start, end = match.span()
                if token.single_word and not _stands_alone(text, start, end):
                    continue
                while token.lstrip and start > free and text[start - 1] in _SPACES:
                    start -= 1
                while token.rstrip and end < len(text) and text[end] in _SPACES:
                    end += 1
                found.append(ControlMatch(max(start, free), end, token_id))
                free = end
        return found


def _stands_alone(text: str, start: int, end: int) -> bool:
    return not any(map(_is_of_word, text[max(start - 1, 0) : start] + text[end : end + 1]))


def _is_of_word(character: str) -> bool:
    """Tell whether a character is part of words by Unicode's rule (UTS 18, annex C), which is the library's: marks and
    joiners are, fractions and circled digits aren't. Python's own rule has it the other way round."""
    category = unicodedata.category(character)
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or character in "\u200c\u200d"
