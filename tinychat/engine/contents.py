"""Finding what was said in the text that a chat template made of it.

What a person or the model said must never act as a control token, and a reply keeps the ids it was made of, so it has
to be known which stretches of a rendered conversation are contents and which are template. Templates trim, repeat, drop
and rearrange contents; so the conversation is rendered again with a mark at either end of each content, and where
taking the marks out gives the first text, they tell.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from tinychat.engine.marking import Located, Marking, Render, free_characters, parted, rendered_or_empty
from tinychat.text.control_tokens import ControlMatch

Item = TypeVar("Item")


@dataclass(slots=True)
class Contents:
    """Where the contents are."""

    located: list[Located] = field(default_factory=list)
    """In the order of the text; they don't overlap."""
    left_out: set[int] = field(default_factory=set)
    """Contents that the template shows nothing of."""
    unsure: set[int] = field(default_factory=set)
    """Contents for which marks told nothing."""


def locate(render: Render, texts: Sequence[str], text: str) -> Contents:
    """Return where in `text`, which is `render(texts)`, each of `texts` stands.

    The white space at the ends of a content is left outside the marks, so that a template that trims does so here, too;
    then the marks are moved outward, to see where it doesn't. Contents of nothing but white space are nowhere.
    """
    marking = Marking(render, texts, text)
    contents = Contents(unsure={number for number, said in enumerate(texts) if said.strip()} - marking.pairs.keys())

    def read(numbers: Sequence[int]) -> bool:
        found = marking.read(dict.fromkeys(numbers, (False, False)))
        if found is not None:
            spans, broken = found
            contents.located += spans
            contents.unsure |= broken
            contents.left_out |= set(numbers) - broken - {span.content for span in spans}
        return found is not None

    readable = _holding(list(marking.pairs), read)
    contents.unsure |= marking.pairs.keys() - set(readable)
    contents.located = _apart(contents.located)

    def read_wider(edges: Sequence[tuple[int, bool]]) -> bool:
        asked = set(edges)
        outside = {number: ((number, False) in asked, (number, True) in asked) for number, _ in edges}
        return marking.read(outside) is not None

    shown = sorted({span.content for span in contents.located})
    edges = [(number, False) for number in shown if texts[number] != texts[number].lstrip()]
    edges += [(number, True) for number in shown if texts[number] != texts[number].rstrip()]
    kept = set(_holding(edges, read_wider))
    contents.located = [_widened(span, texts[span.content], kept) for span in contents.located]
    return contents


def search(contents: Contents, texts: Sequence[str], text: str, template: Sequence[ControlMatch]) -> None:
    """Look for the contents that marks couldn't locate, in order, between those that they could.

    What is found need not be what the content became, but reads the same. It never lies over a control token of the
    template.
    """
    for number in sorted(contents.unsure):
        low = max((span.end for span in contents.located if span.content < number), default=0)
        high = min((span.start for span in contents.located if span.content > number), default=len(text))
        wanted = texts[number].strip()
        at = text.find(wanted, low, high)
        while at >= 0 and any(match.start < at + len(wanted) and match.end > at for match in template):
            at = text.find(wanted, at + 1, high)
        if at >= 0:
            contents.located = _apart([*contents.located, Located(at, at + len(wanted), number)])


def inside_typed_control_tokens(
    render: Render, texts: Sequence[str], text: str, find: Callable[[str], Iterable[ControlMatch]]
) -> set[int] | None:
    """Return the places in `text` that lie inside a control token somebody said, wherever the template has put it.

    For that, the control tokens in the contents are broken up by a mark between their characters: the marks go with
    them. None where the template looks into them, so that nothing can be told.
    """
    found = [list(find(content)) for content in texts]
    if not any(found):
        return set()
    mark = next(free_characters({*text}.union(*texts)))
    broken = [_broken(content, matches, mark) for content, matches in zip(texts, found, strict=True)]
    parts = rendered_or_empty(render, broken).split(mark)
    if "".join(parts) != text:
        return None
    return set(accumulate(map(len, parts[:-1])))


def _holding(items: Sequence[Item], holds: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Return the items for which something holds, asking about as many at once as possible."""
    if not items or holds(items):
        return list(items)
    if len(items) == 1:
        return []
    middle = len(items) // 2
    return _holding(items[:middle], holds) + _holding(items[middle:], holds)


def _widened(span: Located, content: str, kept: Container[tuple[int, bool]]) -> Located:
    """Take in the white space at the ends of a content, where the template kept it."""
    before, _, after = parted(content)
    start = span.start - len(before) if (span.content, False) in kept else span.start
    end = span.end + len(after) if (span.content, True) in kept else span.end
    return Located(start, end, span.content)


def _broken(content: str, matches: Sequence[ControlMatch], mark: str) -> str:
    parts, done = [], 0
    for match in matches:
        parts += [content[done : match.start], mark.join(content[match.start : match.end])]
        done = match.end
    return "".join([*parts, content[done:]])


def _apart(spans: Iterable[Located]) -> list[Located]:
    """Return the spans in the order of the text, without those that overlap one before."""
    apart: list[Located] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if not apart or span.start >= apart[-1].end:
            apart.append(span)
    return apart
