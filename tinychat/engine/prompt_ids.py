"""The ids of a prompt as it is put together, and where each of them comes from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from tinychat.engine.marking import Located
from tinychat.engine.splices import Splice
from tinychat.engine.turns import Content
from tinychat.protocol import Span
from tinychat.text.control_tokens import ControlMatch
from tinychat.text.pipelines import Start
from tinychat.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Source:
    """Where an id comes from."""

    origin: Literal["template", "person", "model"]
    role: str


TEMPLATE = Source("template", "")


class PromptIds:
    """Encodes a text in which some stretches have their ids already."""

    def __init__(self, tokenizer: Tokenizer, contents: Sequence[Content], located: Sequence[Located]) -> None:
        """Begin a prompt.

        Args:
            tokenizer: Of the model.
            contents: What was said.
            located: Where it stands in the text; the rest is template.
        """
        self._tokenizer = tokenizer
        self._located = located
        self._ends = [span.end for span in located]
        self._source_of = [_source(contents[span.content]) for span in located]
        self._sources: list[Source] = []
        self.ids: list[int] = []
        """The ids so far."""
        self.bytes_without_token = 0
        """Bytes that the vocabulary has no token for."""

    def take(self, text: str, control_tokens: Sequence[ControlMatch], splices: Sequence[Splice]) -> None:
        """Append a whole text: control tokens and splices as they are, each stretch between them as plain text."""
        done = 0
        start: Start = "text"
        marks: list[ControlMatch | Splice] = [*control_tokens, *splices]
        for mark in sorted(marks, key=lambda mark: mark.start):
            self._take_plain(text, done, mark.start, start)
            if isinstance(mark, ControlMatch):
                self.add(mark.token_id, TEMPLATE)
                start = "control"
            else:
                for token_id in mark.ids:
                    self.add(token_id, Source("model", "assistant"))
                start = "middle"
            done = max(done, mark.end)
        self._take_plain(text, done, len(text), start)

    def add(self, token_id: int, source: Source) -> None:
        """Append an id."""
        self.ids.append(token_id)
        self._sources.append(source)

    def begin_with(self, token_id: int) -> None:
        """Put an id of the template before all others, unless it stands there already."""
        if self.ids[:1] != [token_id]:
            self.ids.insert(0, token_id)
            self._sources.insert(0, TEMPLATE)

    def spans(self) -> Iterator[Span]:
        """Yield the runs of ids that come from the same place."""
        done = 0
        for source, run in groupby(self._sources):
            length = sum(1 for _ in run)
            yield Span(done, done + length, source.origin, source.role)
            done += length

    def _take_plain(self, text: str, start: int, end: int, before: Start) -> None:
        """Append text[start:end], encoded as one."""
        if start >= end:
            return
        spans = list(self._byte_spans(text, start, end))
        place = 0
        for piece in self._tokenizer.pieces(text[start:end], start=before):
            last = piece.start + len(piece.data)
            while place < len(spans) and spans[place][1] <= piece.start:
                place += 1
            if piece.token_id is None:
                self.bytes_without_token += len(piece.data)
            else:
                said = place < len(spans) and spans[place][0] < last
                self.add(piece.token_id, spans[place][2] if said else TEMPLATE)

    def _byte_spans(self, text: str, start: int, end: int) -> Iterator[tuple[int, int, Source]]:
        """Yield the contents in text[start:end], as offsets of bytes in it."""
        at, offset = start, 0
        for number in range(bisect_right(self._ends, start), len(self._located)):
            low, high = max(self._located[number].start, start), min(self._located[number].end, end)
            if low >= end:
                break
            first = offset + len(text[at:low].encode())
            at, offset = high, first + len(text[low:high].encode())
            yield first, offset, self._source_of[number]


def _source(content: Content) -> Source:
    role = content.message.role
    return Source("model" if role == "assistant" else "person", role)
