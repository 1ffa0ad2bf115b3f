"""Strings to ids and back.

The `tokenizers` library cuts and merges; this adds what a chat needs to be certain of: a person's text never becomes a
control token, every id has its bytes, and every byte of a text is accounted for. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tinychat.protocol import Piece
from tinychat.text.alignment import align
from tinychat.text.bpe import Bpe
from tinychat.text.control_tokens import ControlMatch, ControlTokens
from tinychat.text.detokenizer import Detokenizer
from tinychat.text.parts import TokenizerParts
from tinychat.text.pipelines import Start, pipelines
from tinychat.text.pre_tokens import PreTokens
from tinychat.text.token_bytes import byte_level_bytes, sentencepiece_bytes
from tinychat.text.tokenizer_folder import read_folder
from tinychat.text.tokenizer_gguf import read_metadata

_BYTES_OF_NO_CHARACTER = re.compile("[\udc80-\udcff]+")


class Tokenizer:
    """The vocabulary of one model."""

    def __init__(self, parts: TokenizerParts) -> None:
        """Build it from what a file holds."""
        self._parts = parts
        self._pipelines = pipelines(parts)
        self._spelled_bytes = byte_level_bytes if parts.byte_level else sentencepiece_bytes
        self._bytes = [
            token.encode() if token_id in parts.added else self._spelled_bytes(token)
            for token_id, token in enumerate(parts.tokens)
        ]
        control = {token_id: token for token_id, token in parts.added.items() if token.special}
        self._control_tokens = ControlTokens(control)
        self.special: frozenset[int] = frozenset(control)
        """The control tokens: they steer the model, and text never becomes one unless a template says so."""
        self.bos_id = parts.bos_id
        """The token that begins a text, if the model has one."""
        self.adds_bos = parts.adds_bos
        """Whether the model was trained with BOS before each text."""
        self.end_ids = parts.end_ids
        """The tokens that end a turn or a text, as far as the tokenizer's own files say."""
        self.special_tokens: Mapping[str, str] = parts.special_tokens
        """Texts of control tokens by the names chat templates use: bos_token, eos_token, ..."""
        self.notices = parts.notices
        """What the person has to be told."""

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read a folder with tokenizer.json; raises as `read_folder`."""
        return cls(read_folder(folder))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Read the metadata of a GGUF file; raises as `read_metadata`."""
        return cls(read_metadata(metadata))

    @property
    def size(self) -> int:
        """Number of tokens; the ids are 0 to size - 1. A model's head may have more rows than that."""
        return len(self._bytes)

    @property
    def adds_space(self) -> bool:
        """Whether a text's first word gets a space put before it, as SentencePiece does."""
        return self._pipelines["text"] is not self._pipelines["middle"]

    @cached_property
    def vocabulary(self) -> str:
        """A hash of the spelling of each id and of which ones are control tokens: ids mean the same exactly where this
        is the same."""
        described = json.dumps([self._parts.byte_level, self._parts.tokens, sorted(self.special)])
        return hashlib.sha256(described.encode()).hexdigest()

    @cached_property
    def bpe(self) -> Bpe:
        """Its merges as data, for telling how a text falls into tokens."""
        return Bpe.of(self._parts.model, self._spelled_bytes, self._parts.scores)

    @cached_property
    def pre_tokens(self) -> PreTokens:
        """What text is cut into before merging."""
        return PreTokens(self._parts, self._pipelines)

    def encode(self, text: str, first: bool = True) -> list[int]:
        """Return the ids of plain text: what looks like a control token is encoded as the characters it is.

        Characters that no token stands for are left out; `pieces` shows them. Lone surrogates, which are no characters,
        are taken as U+FFFD. BOS is not added.

        Args:
            text: Any string.
            first: Whether the text begins here; a later stretch gets no space put before it.
        """
        text = well_formed(text)
        start: Start = "text" if first else "middle"
        ids = self._pipelines[start].encode(text, add_special_tokens=False).ids
        if self.special.isdisjoint(ids):
            return ids
        return [token_id for token_id, *_ in self._plain(text, start)]

    def encode_with_control(self, text: str) -> list[int]:
        """Return the ids of a text in which control tokens act: a template's, never a person's. BOS is not added."""
        return [piece.token_id for piece in self.pieces(text, control=True) if piece.token_id is not None]

    def control_tokens(self, text: str, within: Iterable[tuple[int, int]] | None = None) -> list[ControlMatch]:
        """Return where control tokens stand in `text` (see `ControlTokens.find`)."""
        return self._control_tokens.find(text, within)

    def pieces(self, text: str, control: bool = False, start: Start = "text") -> tuple[Piece, ...]:
        """Return the tokens of a text with the bytes each covers, and the bytes that no token stands for.

        The pieces' bytes join to `well_formed(text).encode()`.

        Args:
            text: Any string.
            control: Whether control tokens in it act.
            start: What stands before the text.
        """
        text = well_formed(text)
        if not control:
            return tuple(self._pieces_of_plain(text, start, 0))
        pieces: list[Piece] = []
        done = offset = 0
        for match in [*self.control_tokens(text), None]:
            plain = text[done : match.start if match else len(text)]
            pieces += self._pieces_of_plain(plain, start, offset)
            offset += len(plain.encode())
            if match:
                data = text[match.start : match.end].encode()
                pieces.append(Piece(match.token_id, data, offset, special=True))
                offset += len(data)
                done, start = match.end, "control"
        return tuple(pieces)

    def pieces_of_bytes(self, data: bytes) -> tuple[Piece, ...]:
        """Return the pieces of bytes that need not be UTF-8. They join to `data`.

        Stretches that are UTF-8 become what `pieces` makes of them, one after the other; of the bytes between, each
        becomes the token of that one byte, or a piece without a token where the vocabulary has none.
        """
        text = data.decode("utf-8", "surrogateescape")
        pieces: list[Piece] = []
        done = offset = 0
        for match in [*_BYTES_OF_NO_CHARACTER.finditer(text), None]:
            plain = text[done : match.start() if match else len(text)]
            pieces += self._pieces_of_plain(plain, "middle" if done else "text", offset)
            offset += len(plain.encode())
            if match:
                bad = match[0].encode("utf-8", "surrogateescape")
                pieces += [Piece(self._id_of_byte.get(byte), bytes([byte]), offset + i) for i, byte in enumerate(bad)]
                offset += len(bad)
                done = match.end()
        return tuple(pieces)

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes a token stands for, a control token's text included; none for ids that are no token."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that ids stand for, control tokens' texts included."""
        return b"".join(map(self.bytes_of, ids))

    def decode(self, ids: Iterable[int], skip_special: bool = True, *, starts_text: bool = False) -> str:
        """Return the text of ids; what is no UTF-8 becomes U+FFFD.

        Args:
            ids: Token ids.
            skip_special: Whether control tokens are left out.
            starts_text: Whether nothing stands before the first id (see `Detokenizer`); a reply never starts a text.
        """
        detokenizer = Detokenizer(self, skip_special, starts_text=starts_text)
        return "".join(map(detokenizer.step, ids)) + detokenizer.flush()

    @cached_property
    def _id_of_byte(self) -> dict[int, int]:
        """The token of each single byte, where there is one."""
        spelled = self._parts.byte_level
        singles = ((i, data) for i, data in enumerate(self._bytes) if len(data) == 1 and i not in self._parts.added)
        return {data[0]: i for i, data in singles if spelled or self._parts.tokens[i].startswith("<0x")}

    @cached_property
    def _lost(self) -> frozenset[int]:
        """The bytes that a byte-level vocabulary has no token for, and so leaves out."""
        return frozenset(range(256)) - self._id_of_byte.keys() if self._parts.byte_level else frozenset()

    def _pieces_of_plain(self, text: str, start: Start, offset: int) -> list[Piece]:
        """Return the pieces of plain text that begins `offset` bytes into a larger one."""
        tokens = list(self._plain(text, start))
        data = text.encode()
        spans = [(low, high) for _, low, high in tokens]
        covered = align([self._bytes[i] for i, *_ in tokens], spans, text, self._lost)
        return [
            Piece(None if place is None else tokens[place][0], data[low:high], offset + low)
            for place, low, high in covered
        ]

    def _plain(self, text: str, start: Start) -> Iterator[tuple[int, int, int]]:
        """Yield (id, start, end) of the tokens of plain text; text[start:end] is what each was made from."""
        encoding = self._pipelines[start].encode(text, add_special_tokens=False)
        for token_id, (low, high) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id not in self.special or token_id == self._parts.unknown:
                yield token_id, low, high
            elif high - low > 1:
                # The vocabulary can merge its way to a control token ("</" and "s>"): characters one by one can't.
                for at in range(low, high):
                    yield from ((i, at, at + 1) for i, *_ in self._plain(text[at], "middle"))


def well_formed(text: str) -> str:
    """Return `text` with surrogate pairs joined and lone surrogates, which are no characters, as U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
