"""A prompt laid out in lines, a stretch from one source to a paragraph."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from rich.cells import cell_len

from tinychat.pictures import visible_bytes
from tinychat.protocol import PromptDescribed, Span
from tinychat.ui.widgets.line_widget import cut


@dataclass(frozen=True, slots=True)
class PromptLine:
    """Some pieces of one source."""

    span: Span
    begins: bool
    """Whether it is the first line of its stretch."""
    first: int
    """Index of its first piece."""
    labels: tuple[str, ...]


class PromptLayout:
    """All lines of a prompt, at most `width` cells each: made once, drawn as far as it is in view."""

    def __init__(self, described: PromptDescribed, width: int, *, ids: bool) -> None:
        """Lay out pieces as their text, or as their ids."""
        self.described = described
        self.width = width
        self.ids = ids
        self.lines: list[PromptLine] = []
        for span in described.spans:
            self._add(span)
        self._firsts = [line.first for line in self.lines]

    def line_of(self, index: int) -> int:
        """Return the number of the line that piece `index` stands in."""
        return max(0, bisect_right(self._firsts, index) - 1)

    def _add(self, span: Span) -> None:
        labels: list[str] = []
        first, used, begins = span.start, 0, True
        for index in range(span.start, min(span.end, len(self.described.pieces))):
            label = self._label(index)
            if labels and used + cell_len(label) + 2 > self.width:
                self.lines.append(PromptLine(span, begins, first, tuple(labels)))
                labels, first, used, begins = [], index, 0, False
            labels.append(label)
            used += cell_len(label) + 2
            if self.described.pieces[index].data.endswith(b"\n"):
                used = self.width
        if labels:
            self.lines.append(PromptLine(span, begins, first, tuple(labels)))

    def _label(self, index: int) -> str:
        piece = self.described.pieces[index]
        text = str(piece.token_id) if self.ids else visible_bytes(piece.data) or "no bytes"
        return cut(text, max(1, self.width - 2))


def source_of(span: Span) -> str:
    """Return where a stretch came from, in a word."""
    if span.origin == "template":
        return "template"
    if span.origin == "model":
        return "reply"
    return "system" if span.role == "system" else "you"
