"""Finding what was said in a rendered conversation: the second step of rendering without losing ids."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinychat.engine.contents import Contents, inside_typed_control_tokens, locate, search
from tinychat.errors import TemplateError
from tinychat.text.control_tokens import ControlMatch

Render = Callable[[Sequence[str]], str]


def found(render: Render, texts: Sequence[str]) -> tuple[list[tuple[int, str]], Contents]:
    """Return (content, what stands there) in the order of the text."""
    text = render(texts)
    contents = locate(render, texts, text)
    search(contents, texts, text, [])
    return [(span.content, text[span.start : span.end]) for span in contents.located], contents


def lines(*parts: Callable[[str], str]) -> Render:
    """Return a template of one line a content, each put through a function."""
    return lambda texts: "".join(f"<{part(text)}>\n" for part, text in zip(parts, texts, strict=True))


def same(text: str) -> str:
    return text


def first_five(text: str) -> str:
    return text[:5]


TRANSFORMS = [same, str.strip, str.lstrip, str.upper, str.lower, str.casefold, html.escape]


@pytest.mark.parametrize("change", TRANSFORMS)
@pytest.mark.parametrize(
    "text", ["hello", " hi \n", "a", "<&>", "two words", "ß", "a\nb", "\n\nx</t>\n\ny  ", "\U000f0000"]
)
def test_a_content_is_found_whatever_is_done_to_it(change: Callable[[str], str], text: str) -> None:
    """Trimmed, upper-cased, escaped contents taken for template, or a neighbour taken for them."""
    spans, contents = found(lines(same, change, same), ["one", text, "two"])
    assert spans == [(0, "one"), (1, change(text)), (2, "two")]
    assert contents.left_out == set()


def test_a_content_written_as_json_is_found() -> None:
    """Tool messages: the quotes are template, the escapes are content."""
    spans, _ = found(lines(lambda text: json.dumps(text, ensure_ascii=False)), ['say "é"\tnow'])
    assert spans == [(0, 'say \\"é\\"\\tnow')]


def test_a_content_of_which_one_end_is_gone_is_unsure() -> None:
    """A template that shows only what stands behind "</think>": half of the content taken for all of it."""
    spans, contents = found(lines(lambda text: text.split("</think>")[-1], same), ["a</think>b", "c"])
    assert spans == [(1, "c")]
    assert contents.unsure == {0}
    assert contents.left_out == set()


@given(texts=st.lists(st.text("ab \n<>", max_size=4), max_size=6), data=st.data())
@settings(deadline=None, max_examples=300)
def test_equal_and_empty_contents_are_told_apart(texts: list[str], data: st.DataObject) -> None:
    """The same text said twice, found twice in the first place; contents that are nowhere, found in the template."""
    changes = [data.draw(st.sampled_from([same, str.strip, str.lstrip, str.rstrip])) for _ in texts]
    spans, _ = found(lines(*changes), texts)
    where = [(i, change(text)) for i, (change, text) in enumerate(zip(changes, texts, strict=True)) if text.strip()]
    assert spans == where


def test_contents_may_hold_any_character_that_marks_are_made_of() -> None:
    """A person who types the very marks."""
    spans, _ = found(lines(same, same), ["\U000f0000x\U000f0001", "".join(map(chr, range(0xF0000, 0xF0100)))])
    assert [content for content, _ in spans] == [0, 1]


def test_contents_in_another_order_repeated_or_left_out() -> None:
    """A system prompt that is put into the last message, a title made of the first, thinking that is dropped."""
    spans, contents = found(lambda texts: f"[{texts[2]}] {texts[0]} [{texts[2]}]", ["a", "b", "c"])
    assert spans == [(2, "c"), (0, "a"), (2, "c")]
    assert contents.left_out == {1}
    assert not contents.unsure


def test_white_space_that_the_template_left_belongs_to_the_content() -> None:
    """The line break a person typed, shown as the template's, or one of the template's as typed."""
    spans, _ = found(lambda texts: f"{texts[0].strip()}\n{texts[1]}{texts[2]}", ["a\n", "\nb ", " c"])
    assert spans == [(0, "a"), (1, "\nb "), (2, " c")]


def test_a_template_that_looks_into_one_content_loses_only_that_one() -> None:
    """One message cut to its first characters, and no reply of the conversation keeps its ids."""
    texts = [f"message {number}" for number in range(20)]
    spans, contents = found(lines(*[first_five if number == 7 else same for number in range(20)]), texts)
    assert contents.unsure == {7}
    assert spans == [(number, text) for number, text in enumerate(texts) if number != 7]


def test_what_marks_cannot_tell_is_searched_for_between_what_they_can() -> None:
    """The wrong one of two equal texts; a text found inside a control token of the template."""
    render = lines(same, lambda text: text if len(text) == 3 else "long", same)
    text = render(["abc", "abc", "abc"])
    contents = locate(render, ["abc", "abc", "abc"], text)
    assert contents.unsure == {1}
    search(contents, ["abc", "abc", "abc"], text, [])
    assert [(span.content, span.start) for span in contents.located] == [(0, 1), (1, 7), (2, 13)]

    render = lines(lambda text: f"<|user|> {text}" if len(text) == 4 else "")
    text = render(["user"])
    contents = locate(render, ["user"], text)
    search(contents, ["user"], text, [ControlMatch(1, 9, 0)])
    assert [(span.start, span.end) for span in contents.located] == [(10, 14)]


def test_a_template_that_refuses_marks_is_no_error() -> None:
    """A template that raises on what it doesn't expect brings down the conversation."""

    def render(texts: Sequence[str]) -> str:
        if not texts[0].isascii():
            raise TemplateError("ASCII only.")
        return f"<{texts[0]}>"

    spans, contents = found(render, ["hello"])
    assert spans == [(0, "hello")]
    assert contents.unsure == {0}


def test_marking_takes_no_more_than_its_share_of_renderings() -> None:
    """A long conversation and a template that looks into every message: seconds before the first token."""
    count = 0

    def render(texts: Sequence[str]) -> str:
        nonlocal count
        count += 1
        return "".join(f"<{len(text)} {text}>" for text in texts)

    found(render, [f"message {number}" for number in range(1000)])
    assert count < 80


def find(text: str) -> list[ControlMatch]:
    return [ControlMatch(at, at + 3, 0) for at in range(len(text)) if text.startswith("<s>", at)]


def test_typed_control_tokens_are_known_wherever_the_template_takes_them() -> None:
    """Injection by way of a template that quotes a part of what was said somewhere else."""

    def render(texts: Sequence[str]) -> str:
        return f"<s>title: {texts[0].splitlines()[-1]}<s>{texts[0]}<s>"

    texts = ["a\nb<s>c"]
    text = render(texts)
    typed = inside_typed_control_tokens(render, texts, text, find)
    assert typed is not None
    acting = [match.start for match in find(text) if typed.isdisjoint(range(match.start + 1, match.end))]
    assert acting == [0, text.index("<s>a"), len(text) - 3]


def test_where_nothing_can_be_told_of_typed_control_tokens_that_is_said() -> None:
    """A guess in place of an answer."""
    assert inside_typed_control_tokens(lambda texts: texts[0][:4], ["<s>abc"], "<s>a", find) is None
    assert inside_typed_control_tokens(lambda texts: texts[0][:4], ["abcdef"], "abcd", find) == set()
