"""The splits of a text laid out as chips, in lines: made once, drawn as far as it is in view."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tinychat.pictures import visible_bytes
from tinychat.protocol import Split
from tinychat.ui.widgets.line_widget import cut

_LONGEST = 40
"""Cells of a label: by its beginning a long split is known well enough."""


@dataclass(frozen=True, slots=True)
class PlacedSplit:
    """A split and its place in a line."""

    index: int
    start: int
    """Its first cell."""
    text: str
    """Its characters, made visible, between what parts it from its neighbours."""

    @property
    def end(self) -> int:
        """The cell after its last."""
        return self.start + cell_len(self.text)


class SplitFlow:
    """Lines of chips, at most `width` cells each; tokens that were found before the text was cut stand in brackets."""

    def __init__(self, splits: Sequence[Split], width: int) -> None:
        self.splits = splits
        self.width = width
        self.lines: list[list[PlacedSplit]] = [[]]
        for index, split in enumerate(splits):
            before, after = ("[", "]") if split.kind in ("added", "control") else ("▏", " ")
            text = f"{before}{label(split.data, max(1, min(_LONGEST, width - 2)))}{after}"
            start = self.lines[-1][-1].end if self.lines[-1] else 0
            if start and start + cell_len(text) > width:
                self.lines.append([])
                start = 0
            self.lines[-1].append(PlacedSplit(index, start, text))
        self._firsts = [line[0].index for line in self.lines if line]

    def around(self, index: int, count: int) -> list[list[PlacedSplit]]:
        """Return at most `count` lines, the one that split `index` stands in among them, in the middle if possible."""
        at = max(0, bisect_right(self._firsts, index) - 1)
        first = max(0, min(at - count // 2, len(self.lines) - count))
        return self.lines[first : first + count]


def label(data: bytes, width: int) -> str:
    """Return bytes of a text as at most `width` visible cells; of a long text only what is drawn is looked at."""
    if len(data) > 4 * width + 4:
        data = data[: 4 * width + 4].decode("utf-8", "ignore").encode()
    return cut(visible_bytes(data), width)
