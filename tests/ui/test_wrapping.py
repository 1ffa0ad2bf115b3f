"""Wrapped text: whatever the pieces it arrives in, the lines are those of the whole, and no ink is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tinychat.ui.wrapping import WrappedText

CHUNKS = [*"ab cd\xa0\n\t  ,日本語🦙é", "e\u0301", "❤\ufe0f", "👩\u200d👦\u200d👦", "🇨🇿"]
TEXT = st.lists(st.sampled_from(CHUNKS), max_size=80).map("".join)


@given(text=TEXT, width=st.integers(2, 30), cuts=st.lists(st.integers(0, 120), max_size=8))
def test_streamed_lines_are_the_lines_of_the_whole(text: str, width: int, cuts: list[int]) -> None:
    """Would catch: a word that grows over the edge left behind, or a line wrapped differently once more text came."""
    streamed = WrappedText(width)
    at = 0
    for cut in [*sorted(cuts), len(text)]:
        streamed.append(text[at:cut])
        at = max(at, cut)
    assert streamed.lines == WrappedText(width, text).lines


@given(text=TEXT, width=st.integers(2, 30))
def test_no_ink_is_lost_and_no_line_is_too_wide(text: str, width: int) -> None:
    """Would catch: characters swallowed at a break, and ink drawn over the next column."""
    lines = WrappedText(width, text).lines
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(cell_len(line.rstrip()) <= width for line in lines)


def test_append_tells_the_first_changed_line() -> None:
    """Would catch: a screen that repaints too little (stale line) or everything at each token."""
    wrapped = WrappedText(10, "one two three")
    assert wrapped.lines == ["one two ", "three"]
    assert wrapped.append(" four") == 1
    assert wrapped.lines == ["one two ", "three four"]
    assert wrapped.append("teen") == 1
    assert wrapped.lines == ["one two ", "three ", "fourteen"]


def test_a_long_word_is_broken_and_newlines_are_kept() -> None:
    """Would catch: an endless word that never wraps, and blank lines dropped."""
    assert WrappedText(4, "aaaaaaaaaa b").lines == ["aaaa", "aaaa", "aa b"]
    assert WrappedText(4, "a\n\nb\n").lines == ["a", "", "b", ""]


def test_a_no_break_space_is_no_place_to_break() -> None:
    """Would catch: a line of figures that begins with the dot between two of them."""
    assert WrappedText(7, "one\xa0· two").lines == ["one\xa0· ", "two"]
    assert WrappedText(4, "one\xa0· two").lines == ["one\xa0", "· ", "two"]


def test_wide_characters_count_two_cells() -> None:
    """Would catch: len() where cells are meant."""
    assert WrappedText(5, "日本語").lines == ["日本", "語"]
