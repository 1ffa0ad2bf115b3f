"""Putting the ids a reply was made of back where its text stands in a rendered conversation.

Encoding a reply's text again need not give the ids the model chose, and the caches hold those. A template may show only
a part of a reply (no thinking, no white space at the ends), so the longest run of ids that reads just as the text does
there is put in.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinychat.engine.marking import Located
from tinychat.engine.turns import Content
from tinychat.engine.writing import Written, counted
from tinychat.text.detokenizer import Detokenizer
from tinychat.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Splice:
    """Ids that stand for text[start:end]."""

    start: int
    end: int
    ids: tuple[int, ...]


def splices_of(
    tokenizer: Tokenizer, contents: Sequence[Content], written: Written
) -> tuple[list[Splice], tuple[str, ...]]:
    """Return the stretches of a rendered conversation that replies' own ids stand for, and what has to be said of
    replies for which there are none."""
    shown: dict[int, list[Located]] = {}
    for span in written.contents.located:
        shown.setdefault(contents[span.content].index, []).append(span)
    unsure = {contents[number].index for number in written.contents.unsure}
    room = _Room(contents, written)
    splices: list[Splice] = []
    foreign = changed = 0
    for index, message in {content.index: content.message for content in contents}.items():
        if not message.ids:
            continue
        mine = shown.get(index, [])
        if message.vocabulary != tokenizer.vocabulary:
            foreign += bool(mine) or index in unsure
            continue
        reply = ReplyIds(tokenizer, message.ids)
        found = _splices_of_reply(reply, mine, contents, written.text, room)
        covered = all(any(one.start <= span.start and span.end <= one.end for one in found) for span in mine)
        changed += not covered or (not mine and index in unsure)
        splices += found
    notices: list[str] = []
    if foreign:
        notices.append(f"{counted(foreign, 'reply')} of another model had to be encoded anew from the text.")
    if changed:
        what = counted(changed, "reply")
        notices.append(f"{what} had to be encoded anew, at least in part: the prompt shows other text than was said.")
    return sorted(splices, key=lambda splice: splice.start), tuple(notices)


def _splices_of_reply(
    reply: ReplyIds, mine: Sequence[Located], contents: Sequence[Content], text: str, room: _Room
) -> list[Splice]:
    """Return the splices for the places where the text shows the reply: its answer, its thinking, or both at once."""
    if len(mine) > 1:
        start, end, owner = mine[0].start, mine[-1].end, contents[mine[0].content].index
        whole = reply.splice(text, start, end, *room.around(start, end, owner), last=True)
        if whole is not None and whole.start <= start and end <= whole.end:
            return [whole]
    found: list[Splice] = []
    for span in mine:
        content = contents[span.content]
        low, high = room.around(span.start, span.end, content.index)
        low = max(low, found[-1].end) if found else low
        one = reply.splice(text, span.start, span.end, low, high, last=not content.thinking)
        if one is not None:
            found.append(one)
    return found


class _Room:
    """Tells how far a reply's ids may reach: to the next control token, and to what others said."""

    def __init__(self, contents: Sequence[Content], written: Written) -> None:
        walls = [(one.start, one.end, contents[one.content].index) for one in written.contents.located]
        walls += [(match.start, match.end, -1) for match in written.control_tokens]
        self._walls = sorted(walls)
        self._starts = [start for start, *_ in self._walls]
        self._length = len(written.text)

    def around(self, start: int, end: int, owner: int) -> tuple[int, int]:
        """Return the room around text[start:end], which belongs to message number `owner`.

        A control token may have taken in white space that the reply says; the reply's ids go first.
        """
        before = bisect_left(self._starts, start) - 1
        while before >= 0 and self._walls[before][2] == owner:
            before -= 1
        after = bisect_left(self._starts, start)
        while after < len(self._walls) and (self._walls[after][2] == owner or self._walls[after][1] <= end):
            after += 1
        low = min(self._walls[before][1], start) if before >= 0 else 0
        high = max(self._walls[after][0], end) if after < len(self._walls) else self._length
        return low, high


class ReplyIds:
    """The ids of one reply, and where in its text they can be parted."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int]) -> None:
        """Decode them; control tokens have no text."""
        self._ids = tuple(ids)
        detokenizer = Detokenizer(tokenizer)
        text = ""
        # How many ids lie before each place in the text, those without text that stand there counted or not.
        self._fewest: dict[int, int] = {0: 0}
        self._most: dict[int, int] = {0: 0}
        for count, token_id in enumerate(self._ids, start=1):
            text += detokenizer.step(token_id)
            if not detokenizer.pending:
                self._fewest.setdefault(len(text), count)
                self._most[len(text)] = count
        text += detokenizer.flush()
        self._fewest.setdefault(len(text), len(self._ids))
        self._most.setdefault(len(text), len(self._ids))
        self._places = list(self._fewest)
        self._text = text

    def splice(self, text: str, start: int, end: int, low: int, high: int, *, last: bool) -> Splice | None:
        """Return the run of ids that reads as text[start:end]; None if there is none.

        An id at either end may stand for white space, too. Where `text` has that around the content, the run covers it;
        where it hasn't, the run goes without the id.

        Args:
            text: The rendered conversation.
            start: Where the content begins.
            end: Where it ends.
            low: The run may not begin before this.
            high: Nor end after this.
            last: Whether the content is the reply's end (its answer) or its beginning (its thinking): which one is
                meant, where the reply says the same twice.
        """
        partly: Splice | None = None
        for at in self._occurrences(text[start:end], last):
            shift = start - at
            # Ids are put in whole: the run may reach into white space that the template left around the content.
            first = bisect_right(self._places, at) - 1
            after = bisect_left(self._places, at + end - start)
            if self._reads_as(text, first, after, shift, low, high):
                return self._run(first, after, shift)
            # Where the template took that white space away, the ids that hold it are left out.
            first = bisect_left(self._places, at)
            after = bisect_right(self._places, at + end - start) - 1
            if partly is None and first < after:
                partly = self._run(first, after, shift)
        return partly

    def _run(self, first: int, after: int, shift: int) -> Splice:
        begin, finish = self._places[first], self._places[after]
        return Splice(begin + shift, finish + shift, self._ids[self._most[begin] : self._fewest[finish]])

    def _occurrences(self, wanted: str, last: bool) -> Iterator[int]:
        at = self._text.rfind(wanted) if last else self._text.find(wanted)
        while at >= 0:
            yield at
            at = self._text.rfind(wanted, 0, at + len(wanted) - 1) if last else self._text.find(wanted, at + 1)

    def _reads_as(self, text: str, first: int, after: int, shift: int, low: int, high: int) -> bool:
        """Tell whether the reply between two places reads as the text does there."""
        begin, finish = self._places[first], self._places[after]
        inside = low <= begin + shift and finish + shift <= high
        return inside and text.startswith(self._text[begin:finish], begin + shift)
