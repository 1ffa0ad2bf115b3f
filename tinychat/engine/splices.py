"""Putting the ids a reply was made of back where its text stands in a rendered conversation.

Encoding a reply's text again need not give the ids the model chose, and the caches hold those. A template may show only
a part of a reply (no thinking, no white space at the ends), so the longest run of ids that reads just as the text does
there is put in.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinychat.engine.contents import Located
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
    splices: list[Splice] = []
    foreign = changed = 0
    for index, message in {content.index: content.message for content in contents}.items():
        if not message.ids:
            continue
        mine = shown.get(index, [])
        if message.vocabulary != tokenizer.vocabulary:
            foreign += bool(mine) or index in unsure
            continue
        found = _splices_of_reply(ReplyIds(tokenizer, message.ids), mine, contents, written)
        covered = all(any(one.start <= span.start and span.end <= one.end for one in found) for span in mine)
        changed += not covered or (not mine and index in unsure)
        splices += found
    notices: list[str] = []
    if foreign:
        notices.append(f"{counted(foreign, 'reply')} of another model had to be encoded anew from the text.")
    if changed:
        notices.append(
            f"{counted(changed, 'reply')} had to be encoded anew: the prompt shows other text than was said."
        )
    return sorted(splices, key=lambda splice: splice.start), tuple(notices)


def _splices_of_reply(
    reply: ReplyIds, mine: Sequence[Located], contents: Sequence[Content], written: Written
) -> list[Splice]:
    """Return the splices for the places where the text shows the reply: its answer, its thinking."""
    others = [one for one in written.contents.located if one not in mine]
    found: list[Splice] = []
    # From the last to the first: the run of an answer may reach over the thinking before it.
    for span in reversed(mine):
        if found and found[-1].start <= span.start:
            continue
        walls = [(other.start, other.end) for other in others]
        walls += [(match.start, match.end) for match in written.control_tokens]
        walls += [(splice.start, splice.end) for splice in found]
        # A control token may have taken in white space that the reply says: the reply's ids go first.
        low = max((min(end, span.start) for start, end in walls if start < span.start), default=0)
        high = min((max(start, span.end) for start, end in walls if end > span.end), default=len(written.text))
        answer = not contents[span.content].thinking
        splice = reply.splice(written.text, span.start, span.end, low=low, high=high, last=answer)
        if splice is not None:
            found.append(splice)
    return found


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

    def splice(self, text: str, start: int, end: int, *, low: int, high: int, last: bool) -> Splice | None:
        """Return the longest run of ids that reads as `text` does at and around text[start:end]; None if none does.

        Args:
            text: The rendered conversation.
            start: Where the content begins.
            end: Where it ends.
            low: The run may not begin before this.
            high: Nor end after this.
            last: Whether the content is the reply's end (its answer) or its beginning (its thinking): which one is
                meant, where the reply says the same twice.
        """
        for at in self._occurrences(text[start:end], last):
            shift = start - at
            # Ids are put in whole: the run may reach into white space that the template left around the content.
            first = bisect_right(self._places, at) - 1
            after = bisect_left(self._places, at + end - start)
            if self._reads_as(text, first, after, shift, low, high):
                while first > 0 and self._reads_as(text, first - 1, first, shift, low, high):
                    first -= 1
                while after + 1 < len(self._places) and self._reads_as(text, after, after + 1, shift, low, high):
                    after += 1
                begin, finish = self._places[first], self._places[after]
                return Splice(begin + shift, finish + shift, self._ids[self._most[begin] : self._fewest[finish]])
        return None

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
