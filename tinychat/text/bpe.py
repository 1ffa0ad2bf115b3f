"""Byte-pair encoding, one merge at a time (Sennrich, Haddow and Birch 2016, https://arxiv.org/abs/1508.07909).

A vocabulary was learned by joining, over and over, the pair of neighbours that a large text held most often; the order
in which the pairs were learned is their rank. A piece of text becomes tokens by doing the same again: begin with its
smallest parts, join the pair of the lowest rank, and go on until no two neighbours are a pair that was learned.

* Byte-level vocabularies (GPT-2's and most of today's) begin with the bytes of the piece.
* SentencePiece vocabularies begin with its characters, spaces among them, and know a score for each token in place of
  ranks. The best score goes first, which is a ranking of the pairs, too (see `tokenizer_gguf.merges_by_score`).

What the model is fed comes from the `tokenizers` library. This is the same in a form that can be read and shown; it
takes quadratic time, which the library doesn't.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import tokenizers
from tokenizers.models import BPE

from tinychat.protocol import Merge, Symbol

Pair = tuple[int, int]
"""The ids of two neighbours."""


@dataclass(frozen=True, slots=True)
class Bpe:
    """What was learned, and what becomes of characters that weren't."""

    vocabulary: Mapping[str, int]
    """The id of each token, by how it is spelled."""
    merges: Mapping[Pair, tuple[int, int]]
    """(rank, id of the token they join to) of each pair that was learned; the lowest rank goes first."""
    bytes_of: Callable[[str], bytes]
    """Bytes that a spelled character stands for."""
    scores: Sequence[float] | None = None
    """The score of each id, where the ranks come from scores."""
    ignore_merges: bool = False
    """Whether a piece that is a token by itself becomes that token, though no merges may lead to it."""
    byte_fallback: bool = False
    """Whether a character that is no token becomes the tokens of its bytes: "<0xF0>" and so on."""
    unknown: int | None = None
    """The token for characters that have no other."""
    fuse_unknown: bool = False
    """Whether several of those in a row become one such token."""

    @classmethod
    def of(cls, model: BPE, bytes_of: Callable[[str], bytes], scores: Sequence[float] | None = None) -> Bpe:
        """Read them out of the library's model; takes some tenths of a second for the largest vocabularies."""
        described = json.loads(tokenizers.Tokenizer(model).to_str())["model"]
        vocabulary: dict[str, int] = described["vocab"]
        return cls(
            vocabulary,
            {
                (vocabulary[left], vocabulary[right]): (rank, vocabulary[left + right])
                for rank, (left, right) in enumerate(described["merges"])
            },
            bytes_of,
            scores,
            model.ignore_merges,
            model.byte_fallback,
            None if model.unk_token is None else vocabulary.get(model.unk_token),
            model.fuse_unk,
        )

    def whole(self, piece: str) -> int | None:
        """Return the token that a piece becomes without any merging; None: it is merged."""
        return self.vocabulary.get(piece) if self.ignore_merges else None

    def symbols(self, piece: str) -> tuple[list[Symbol], bytes]:
        """Return what merging begins with, and the bytes that no token stands for: they are gone before it begins."""
        symbols: list[Symbol] = []
        lost = b""
        for character in piece:
            data = self.bytes_of(character)
            fallback = [self.vocabulary.get(f"<0x{byte:02X}>") for byte in data] if self.byte_fallback else [None]
            if (token_id := self.vocabulary.get(character)) is not None:
                symbols.append(Symbol(data, token_id))
            elif None not in fallback:
                known = zip(data, fallback, strict=True)
                symbols += [Symbol(bytes([byte]), i, "byte") for byte, i in known if i is not None]
            elif self.unknown is None:
                lost += data
            elif self.fuse_unknown and symbols and symbols[-1].fallback == "unknown":
                symbols[-1] = Symbol(symbols[-1].data + data, self.unknown, "unknown")
            else:
                symbols.append(Symbol(data, self.unknown, "unknown"))
        return symbols, lost

    def merge(self, ids: Sequence[int]) -> Iterator[Merge]:
        """Yield each merge, in order: of all neighbours that are a pair, those of the lowest rank; of equals, the
        leftmost. What is left when it ends are the tokens.

        Args:
            ids: Of the symbols that the piece begins with.
        """
        ids = list(ids)
        while True:
            found = [self.merges.get(pair) for pair in pairwise(ids)]
            possible = [(known[0], at) for at, known in enumerate(found) if known is not None]
            if not possible:
                return
            rank, at = min(possible)
            _, joined = self.merges[ids[at], ids[at + 1]]
            ids[at : at + 2] = [joined]
            score = None if self.scores is None else self.scores[joined]
            yield Merge(at, joined, rank, score, tuple(None if known is None else known[0] for known in found))
