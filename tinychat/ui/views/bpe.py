"""The view of byte-pair encoding: how the typed text becomes tokens, merge by merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual import events
from textual.binding import Binding

from tinychat.protocol import BpeWalk, Split, TextExplained
from tinychat.ui import figures
from tinychat.ui.glass import Glass
from tinychat.ui.split_flow import SplitFlow
from tinychat.ui.split_remarks import split_remarks
from tinychat.ui.views import merge_rows
from tinychat.ui.views.view import View, sentence
from tinychat.ui.widgets.line_widget import Line, cells, cut, spread

_ROOMY: Final = 16
"""Lines from which on the splits have three rows, and the columns names."""


class BpeView(View):
    """The splits as chips, one in focus; of it a row a merge, the one that is next in focus, and at last the ids."""

    NAME = "bpe"

    HELP = """
**BPE, step by step.** How what you type becomes tokens (where the prompt is empty: what you said last). The
pre-tokenizer cuts the text into splits, which `←` `→` choose; no merge goes across their edges. A split begins as bytes
or characters, and of all neighbours the pair of the lowest rank is joined, of equals the leftmost, again and again: the
rank says when the pair was learned, 0 first, and stands below the gap, `–` where none was. `↑` `↓` go merge by merge,
`Home` and `End` to the beginning and to the tokens. Sennrich, Haddow and Birch 2016, arXiv:1508.07909. SentencePiece
vocabularies keep a score for each token, the highest goes first, and byte fallback spells characters that are no token
in tokens of their bytes: Kudo and Richardson 2018, arXiv:1808.06226. `tinychat tokenize --explain` prints the same.
"""

    BINDINGS = [
        Binding("left", "split(-1)", "split", tooltip="The split before", key_display="←→", id="bpe.split"),
        Binding("right", "split(1)", "next split", show=False, tooltip="The split after"),
        Binding("ctrl+left", "split(-10)", "ten back", show=False, tooltip="Ten splits back"),
        Binding("ctrl+right", "split(10)", "ten on", show=False, tooltip="Ten splits on"),
        Binding("up", "move(-1)", "merge", tooltip="One merge back", key_display="↑↓", id="bpe.merge"),
        Binding("down", "move(1)", "next merge", show=False, tooltip="The next merge"),
        Binding("home", "move(-1000000)", "first merge", show=False, tooltip="Before the first merge"),
        Binding("end", "end", "tokens", show=False, tooltip="The tokens that merging ends with"),
    ]

    COMPONENT_CLASSES = {"bpe--odd", "bpe--even", "bpe--fallback"}

    DEFAULT_CSS = """
    BpeView {
        & .bpe--odd { color: $chip-text; background: $chip-odd; }
        & .bpe--even { color: $chip-text; background: $chip-even; }
        & .bpe--fallback { color: $warning; text-style: bold; }
    }
    """

    def __init__(self, glass: Glass) -> None:
        super().__init__(glass)
        self._split = 0
        """Index of the split in focus."""
        self._at_end = False
        """Whether the tokens are looked at, not the merges: that stays so from split to split."""
        self._seen: TextExplained | None = None
        self._flow: SplitFlow | None = None
        self._places: list[tuple[int, int, int, int]] = []
        """Of each chip that is drawn: line, first cell, the cell after the last, index."""
        self._composed: tuple[tuple[object, ...], Sequence[Line]] = ((), ())

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return the lines; while nothing has changed, the same again, since a running reply asks often."""
        self._follow()
        if self._composed[0] != self._key(width):
            lines = super().compose_lines(width)
            self._composed = (self._key(width), lines)
        return self._composed[1]

    def head(self, width: int) -> Sequence[Line]:
        """Return the splits, the symbols after the merges so far, and what is next."""
        typed = self.glass.typed
        self._places = []
        if not typed.text:
            return sentence("Nothing to look at yet: type something.", width)
        if not typed.readable:
            return sentence("No vocabulary has been read yet, so there is nothing to tell of a text.", width)
        if typed.explained is None:
            return sentence("Asking the engine ...", width)
        if typed.explained.problem:
            return sentence(typed.explained.problem, width, "view--warning")
        walk, split = self._walk, self._focused
        if walk is None or split is None:
            return sentence("Nothing is left of this text: the model doesn't see it.", width, "view--warning")
        roomy = self.size.height >= _ROOMY
        lines = [self._title(walk, split, width), *self._chips(walk, width, 3 if roomy else 1)]
        if walk.normalized is not None:
            lines += sentence("Normalized before it is cut: the splits show what it becomes.", width)
        if walk.left_out:
            more = "1 more split is" if walk.left_out == 1 else f"{figures.count(walk.left_out)} more splits are"
            lines += sentence(f"{more} not explained: the text is too long.", width, "view--warning")
        if roomy:
            lines.append(())
        count = min(self.row, len(split.merges))
        lines += merge_rows.state(split, count, width)
        lines.append(((cut(merge_rows.verdict(split, count), width), "view--text"),))
        for remark in split_remarks(split):
            lines += sentence(cut(remark, 2 * width), width, "view--warning")
        if roomy and split.merges:
            lines += [(), merge_rows.heading(width, by_score=walk.by_score)]
        return lines

    def body(self, width: int) -> Sequence[Line]:
        """Return a row a merge, and the ids."""
        split = self._focused
        if split is None:
            return ()
        # What is out of view is not drawn, only counted: of a SentencePiece vocabulary, a split may be a whole text.
        first, last = self.row - self.size.height, self.row + self.size.height
        rows = [
            merge_rows.step(split, count, width, here=count == self.row) if first <= count <= last else ()
            for count in range(len(split.merges))
        ]
        return [*rows, *merge_rows.ids(split, width, here=self.row >= len(split.merges))]

    def action_split(self, steps: int) -> None:
        """Look at another split."""
        self._look_at(self._split + steps)
        self.update_lines()

    def action_move(self, rows: int) -> None:
        """Go so many merges on, or back."""
        super().action_move(rows)
        if (split := self._focused) is not None and split.merges:
            self._at_end = self.row >= len(split.merges)

    def action_end(self) -> None:
        """Go to the tokens."""
        self._at_end = True
        self._look_at(self._split)
        self.update_lines()

    def on_click(self, event: events.Click) -> None:
        """Go to the split or the merge that was clicked."""
        for y, start, end, index in self._places:
            if y == event.y and start <= event.x < end:
                self._look_at(index)
                self.update_lines()
                return
        if (row := self.row_at(event.y)) is not None:
            self.action_move(row - self.row)

    @property
    def _walk(self) -> BpeWalk | None:
        """What to draw: of the text that was asked about last, or while that is on its way, of the one before."""
        typed = self.glass.typed
        return typed.explained.walk if typed.text and typed.explained is not None else None

    @property
    def _focused(self) -> Split | None:
        walk = self._walk
        return walk.splits[self._split] if walk is not None and self._split < len(walk.splits) else None

    def _key(self, width: int) -> tuple[object, ...]:
        """Return everything that the lines depend on."""
        typed = self.glass.typed
        told = (typed.explained, bool(typed.text), typed.of_draft, typed.readable)
        return (width, self.size.height, self._split, self.row, *told)

    def _look_at(self, index: int) -> None:
        """Look at a split, at its beginning or its tokens, whichever was looked at before."""
        walk = self._walk
        if walk is not None and walk.splits:
            self._split = min(max(index, 0), len(walk.splits) - 1)
            self.row = len(walk.splits[self._split].merges) if self._at_end else 0

    def _follow(self) -> None:
        """Of another text, look at the first split that is another one: that is where somebody types."""
        explained = self.glass.typed.explained
        if explained is None or explained is self._seen:
            return
        before = self._seen.walk.splits if self._seen is not None and self._seen.walk is not None else ()
        self._seen = explained
        after = explained.walk.splits if explained.walk is not None else ()
        pairs = enumerate(zip(before, after, strict=False))
        changed = next((index for index, (old, new) in pairs if old != new), min(len(before), len(after)))
        if changed < max(len(before), len(after)):
            self._look_at(changed)

    def _title(self, walk: BpeWalk, split: Split, width: int) -> Line:
        count, total = min(self.row, len(split.merges)), len(split.merges)
        place = f"split {self._split + 1} of {len(walk.splits)} · {count} of {total} merge{'' if total == 1 else 's'}"
        right: Line = ((place, "view--quiet"),)
        number = sum(len(each.tokens) for each in walk.splits)
        begun = "the beginning of " if walk.left_out else ""
        what = f"{begun}{'the draft' if self.glass.typed.of_draft else 'your last message'}: {figures.tokens(number)}"
        return spread(((cut(what, max(8, width - cells(right) - 1)), "view--title"),), right, width, (" ", ""))

    def _chips(self, walk: BpeWalk, width: int, rows: int) -> list[Line]:
        """Return rows of splits, the one in focus among them."""
        flow = self._flow
        if flow is None or flow.splits is not walk.splits or flow.width != width:
            flow = self._flow = SplitFlow(walk.splits, width)
        lines: list[Line] = []
        for y, line in enumerate(flow.around(self._split, rows), 1):
            self._places += [(y, chip.start, chip.end, chip.index) for chip in line]
            styles = ["view--row" if chip.index == self._split else _chip(chip.index) for chip in line]
            lines.append(tuple((chip.text, style) for chip, style in zip(line, styles, strict=True)))
        return lines


def _chip(index: int) -> str:
    return "bpe--odd" if index % 2 else "bpe--even"
