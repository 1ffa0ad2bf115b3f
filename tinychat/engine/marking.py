"""Rendering a conversation with marks around what was said, to see where it ends up.

Taking the marks out has to give the text that was rendered without them; then the template didn't look at them, and
what lies between them is what became of the content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tinychat.errors import TemplateError

Render = Callable[[Sequence[str]], str]
"""Renders the conversation with these texts in place of its contents."""

MAX_RENDERINGS: Final = 64
"""Renderings that marking may take; one is enough unless the template looks into what was said, or trims it."""

_PRIVATE: Final = range(0xF0000, 0x110000)
"""Characters that Unicode gives no meaning: no template trims them or changes their case."""
_PRIVATE_CHARACTER: Final = re.compile("[\U000f0000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Located:
    """A content in the rendered text: text[start:end]."""

    start: int
    end: int
    content: int


class Marking:
    """Marks contents, as often as it is asked to."""

    def __init__(self, render: Render, texts: Sequence[str], text: str) -> None:
        """Choose marks.

        Args:
            render: Renders the conversation.
            texts: Its contents.
            text: What rendering these gives.
        """
        self._render = render
        self._texts = texts
        self._text = text
        self._renderings = 0
        said = [number for number, content in enumerate(texts) if content.strip()]
        marks = free_characters({*text}.union(*texts))
        self.pairs = dict(zip(said, zip(marks, marks, strict=False), strict=False))
        """The marks for the beginning and the end of each content that isn't just white space."""

    def read(self, outside: Mapping[int, tuple[bool, bool]]) -> tuple[list[Located], set[int]] | None:
        """Return what lies between the marks, and the contents whose marks don't come in pairs.

        None where taking the marks out doesn't give the text: the template looks into one of these contents, or trims
        it, if white space is marked; or there have been enough renderings.

        Args:
            outside: The contents to mark; for the beginning and the end of each, whether the mark goes outside of the
                white space there.
        """
        self._renderings += 1
        if self._renderings > MAX_RENDERINGS:
            return None
        marked = list(self._texts)
        for number, sides in outside.items():
            marked[number] = _marked(marked[number], self.pairs[number], sides)
        meaning = {self.pairs[number][0]: (number, True) for number in outside}
        meaning |= {self.pairs[number][1]: (number, False) for number in outside}
        rendered = rendered_or_empty(self._render, marked)
        marks = [
            (match.start(), *meaning[match[0]])
            for match in _PRIVATE_CHARACTER.finditer(rendered)
            if match[0] in meaning
        ]
        spans: list[Located] = []
        broken: set[int] = set()
        opened: dict[int, int] = {}
        plain: list[str] = []
        done = 0
        for marks_before, (place, number, opens) in enumerate(marks):
            plain.append(rendered[done:place])
            done = place + 1
            at = place - marks_before
            if opens:
                broken |= {number} & opened.keys()
                opened[number] = at
            elif number in opened:
                spans.append(Located(opened.pop(number), at, number))
            else:
                broken.add(number)
        if "".join([*plain, rendered[done:]]) != self._text:
            return None
        broken |= opened.keys()
        return [span for span in spans if span.content not in broken], broken


def free_characters(taken: set[str]) -> Iterator[str]:
    """Yield characters that can serve as marks."""
    return (chr(code) for code in _PRIVATE if chr(code) not in taken)


def rendered_or_empty(render: Render, texts: Sequence[str]) -> str:
    """Return the rendered conversation, or nothing where the template refuses the marks."""
    try:
        return render(texts)
    except TemplateError:
        return ""


def parted(content: str) -> tuple[str, str, str]:
    """Return the white space before, the core, and the white space behind; the core is not empty."""
    core = content.strip()
    before, after = content.split(core, 1)
    return before, core, after


def _marked(content: str, pair: tuple[str, str], outside: tuple[bool, bool]) -> str:
    before, core, after = parted(content)
    beginning = pair[0] + before if outside[0] else before + pair[0]
    return beginning + core + (after + pair[1] if outside[1] else pair[1] + after)
