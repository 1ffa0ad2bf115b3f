"""Markdown styles a reply and never eats any of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style

from tinychat.ui.foreign_text import PICTURES
from tinychat.ui.markdown import markdown_lines


def render(text: str, width: int = 60) -> list[str]:
    lines = markdown_lines(text, width, lambda _: Style())
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


@pytest.mark.parametrize(
    "text",
    [
        "<think>hidden</think> answer", r"\[x\] and \(y\)", "[/INST] [INST] arr[i]=1", "&amp; &#27;[31m", "![alt](u)",
        "<div>block</div>", "[@click=app.quit]x[/]", "a <http://x.y> b",
    ],
)  # fmt: skip
def test_nothing_is_eaten(text: str) -> None:
    """Would catch: tags, escapes and entities that vanish, in a program that is to show what was sampled."""
    drawn = " ".join(render(text))
    for word in text.replace("![alt](u)", "!alt (u)").split():
        assert word in drawn


def test_line_breaks_stay() -> None:
    """Would catch: a poem on one line."""
    assert render("line1\nline2") == ["line1", "line2"]


def test_numbers_of_lists_stay_as_written() -> None:
    """Would catch: a list renumbered or its brackets dropped, where the tokens are to be seen."""
    assert render("1) a\n2) b") == [" 1) a", " 2) b"]
    assert render("3. a\n3. b") == [" 3. a", " 3. b"]
    assert render("\n".join(f"{n}. x" for n in range(1, 11)))[::9] == ["  1. x", " 10. x"]


@pytest.mark.parametrize("text", ["- a", "1. a", "> a", "```\na\n```", "# a", "|a|\n|-|\n|a|"])
def test_a_reply_begins_beside_its_label(text: str) -> None:
    """Would catch: a blank line before a reply that begins with a list, a quote, code or a table."""
    assert "a" in render(text)[0]


def test_reference_definitions_stay() -> None:
    """Would catch: a line of the reply that is nowhere on the screen."""
    assert "[a]: http://b" in render("text\n\n[a]: http://b")


def test_links_can_be_read_and_not_followed() -> None:
    """Would catch: a link whose target is hidden, or that the terminal or the app would open."""
    lines = markdown_lines("[click](http://evil.example/x) <b>", 60, lambda _: Style())
    assert all(segment.style is None or not segment.style.link for line in lines for segment in line)
    assert "click (http://evil.example/x)" in render("[click](http://evil.example/x)")[0]


def test_parts_get_their_styles() -> None:
    """Would catch: a parser that recognises nothing any more."""
    wanted: set[str] = set()

    def style_of(name: str) -> Style:
        wanted.add(name)
        return Style()

    code = "```python\ndef f(): # c\n    return 's' + 1\n```"
    text = f"# T\n\n**b** `c`\n\n> q\n\n- i\n\n{code}\n\n| a |\n|---|\n| b |\n\n---\n"
    drawn = "\n".join("".join(s.text for s in line) for line in markdown_lines(text, 40, style_of))
    assert {"heading", "strong", "code", "block", "keyword", "comment", "string", "number", "function"} <= wanted
    assert "**" not in drawn
    assert "```" not in drawn


MARKS = st.text(alphabet=st.sampled_from(list("ab #*_`>-|[](){}<&;\\!~1.\n\t\x1b\x9b\u202e日")), max_size=200)


@settings(deadline=None)
@given(text=MARKS, width=st.integers(8, 60))
def test_no_reply_breaks_it(text: str, width: int) -> None:
    """Would catch: a crash on malformed Markdown, a line too wide, a control character that comes out of the parser."""
    for line in markdown_lines(text, width, lambda _: Style()):
        drawn = "".join(segment.text for segment in line)
        assert cell_len(drawn) <= width
        assert not any(ord(c) in PICTURES or c == "\n" for c in drawn)


def test_deep_nesting_is_no_trap() -> None:
    """Would catch: a recursion error from a reply of nothing but quotes or lists."""
    assert render(">" * 500 + " x", 20)
    assert render("\n".join("  " * n + "- x" for n in range(60)), 20)
