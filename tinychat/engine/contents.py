"""Finding what was said in the text that a chat template made of it.

What a person or the model said must never act as a control token, and a reply keeps the ids it was made of, so it has
to be known which stretches of a rendered conversation are contents and which are template. Templates trim, repeat, drop
and rearrange contents; so the conversation is rendered again with a mark at either end of each content, and where
taking the marks out gives the first text, they tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import Final

from tinychat.errors import TemplateError
from tinychat.text.control_tokens import ControlMatch

Render = Callable[[Sequence[str]], str]
"""Renders the conversation with these texts in place of its contents."""

MAX_RENDERINGS: Final = 64
"""Renderings that marking may take; one is enough unless the template looks into what was said."""
_PRIVATE: Final = range(0xF0000, 0x110000)
"""Characters that Unicode gives no meaning: no template trims them or changes their case."""


@dataclass(frozen=True, slots=True)
class Located:
    """A content in the rendered text: text[start:end]."""

    start: int
    end: int
    content: int


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

    White space at the ends of a content lies outside the marks, so that a template that trims does so here too, and is
    counted to the content where it is still there. Contents of nothing but white space are nowhere.
    """
    marks = _free_characters({*text}.union(*texts))
    said = [number for number, content in enumerate(texts) if content.strip()]
    pairs = dict(zip(said, zip(marks, marks, strict=False), strict=False))
    contents = Contents(unsure=set(said) - pairs.keys())
    renderings = 0

    def mark(numbers: Sequence[int]) -> None:
        nonlocal renderings
        renderings += 1
        found = None
        if renderings <= MAX_RENDERINGS:
            chosen = {number: pairs[number] for number in numbers}
            marked = [_marked(one, *chosen[i]) if i in chosen else one for i, one in enumerate(texts)]
            found = _read_marks(_rendered_or_empty(render, marked), chosen, text)
        if found is not None:
            spans, broken = found
            contents.located += spans
            contents.unsure |= broken
            contents.left_out |= set(numbers) - broken - {span.content for span in spans}
        elif len(numbers) == 1 or renderings > MAX_RENDERINGS:
            contents.unsure |= set(numbers)
        else:
            # The template looks into a content: find out which, so that the others are located all the same.
            mark(numbers[: len(numbers) // 2])
            mark(numbers[len(numbers) // 2 :])

    if pairs:
        mark(list(pairs))
    contents.located = _with_space(_apart(contents.located), texts, text)
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
    mark = next(_free_characters({*text}.union(*texts)))
    broken = [_broken(content, matches, mark) for content, matches in zip(texts, found, strict=True)]
    parts = _rendered_or_empty(render, broken).split(mark)
    if "".join(parts) != text:
        return None
    return set(accumulate(map(len, parts[:-1])))


def _free_characters(taken: set[str]) -> Iterator[str]:
    return (chr(code) for code in _PRIVATE if chr(code) not in taken)


def _marked(content: str, opening: str, closing: str) -> str:
    core = content.strip()
    before, after = content.split(core, 1)
    return f"{before}{opening}{core}{closing}{after}"


def _broken(content: str, matches: Sequence[ControlMatch], mark: str) -> str:
    parts, done = [], 0
    for match in matches:
        parts += [content[done : match.start], mark.join(content[match.start : match.end])]
        done = match.end
    return "".join([*parts, content[done:]])


def _rendered_or_empty(render: Render, texts: Sequence[str]) -> str:
    try:
        return render(texts)
    except TemplateError:
        return ""


def _read_marks(
    rendered: str, pairs: Mapping[int, tuple[str, str]], text: str
) -> tuple[list[Located], set[int]] | None:
    """Return what lies between the marks, and the contents whose marks don't come in pairs; None if taking the marks
    out doesn't give `text`."""
    opened_by = {opening: number for number, (opening, _) in pairs.items()}
    closed_by = {closing: number for number, (_, closing) in pairs.items()}
    parts = re.split(f"([{''.join([*opened_by, *closed_by])}])", rendered)
    if "".join(parts[::2]) != text:
        return None
    spans: list[Located] = []
    broken: set[int] = set()
    open_at: dict[int, int] = {}
    at = 0
    for part, mark in zip(parts[::2], [*parts[1::2], ""], strict=True):
        at += len(part)
        if mark in opened_by:
            number = opened_by[mark]
            broken |= {number} & open_at.keys()
            open_at[number] = at
        elif mark in closed_by:
            number = closed_by[mark]
            if number in open_at:
                spans.append(Located(open_at.pop(number), at, number))
            else:
                broken.add(number)
    broken |= open_at.keys()
    return [span for span in spans if span.content not in broken], broken


def _with_space(spans: Sequence[Located], texts: Sequence[str], text: str) -> list[Located]:
    """Take in the white space at the contents' ends, where the template left it."""
    widened: list[Located] = []
    for span, following in zip_longest(spans, spans[1:]):
        content = texts[span.content]
        before, after = content.split(content.strip(), 1)
        low = widened[-1].end if widened else 0
        high = following.start if following else len(text)
        start = span.start - len(before) if text.endswith(before, low, span.start) else span.start
        end = span.end + len(after) if text.startswith(after, span.end, high) else span.end
        widened.append(Located(start, end, span.content))
    return widened


def _apart(spans: Iterable[Located]) -> list[Located]:
    """Return the spans in the order of the text, without those that overlap one before."""
    apart: list[Located] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if not apart or span.start >= apart[-1].end:
            apart.append(span)
    return apart
