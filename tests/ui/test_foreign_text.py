"""No character that a terminal obeys is drawn, and no other character is changed."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinychat.ui.foreign_text import inert, pictured, visible

EVIL = "A\x1b]52;c;aGk=\x1b\\B\x1b[2JC\x9b31mD"


def test_escape_sequences_become_pictures() -> None:
    """Would catch: a reply that writes the user's clipboard or clears the screen."""
    assert pictured(EVIL) == "A␛]52;c;aGk=␛\\B␛[2JC<U+009B>31mD"


@pytest.mark.parametrize("code", [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
def test_every_control_character_is_replaced(code: int) -> None:
    """Would catch: one code forgotten in a range, CR and backspace first of all."""
    drawn = pictured(chr(code))
    if chr(code) in "\n\t":
        assert drawn == chr(code)
    else:
        assert chr(code) not in drawn
        assert drawn.isprintable()


@given(text=st.text())
def test_what_is_drawn_can_be_written_to_a_terminal(text: str) -> None:
    """Would catch: a lone surrogate (a file name) that ends the program in UnicodeEncodeError."""
    drawn = pictured(text)
    drawn.encode()
    assert all(unicodedata.category(c) not in ("Cc", "Cs") or c in "\n\t" for c in drawn)


@given(text=st.text(alphabet=st.characters(exclude_categories=["C", "Z"])))
def test_ordinary_text_is_not_touched(text: str) -> None:
    """Would catch: a filter that eats letters, emoji or brackets."""
    assert pictured(text) == text


def test_emoji_sequences_survive() -> None:
    """Would catch: the joiner of a family emoji drawn as a picture in a reply."""
    assert pictured("👩‍👦‍👦 ❤️ 🇨🇿") == "👩‍👦‍👦 ❤️ 🇨🇿"


@pytest.mark.parametrize("text", ["[/INST]", "[bold]hi[/bold]", "arr[i]=1", "[@click=app.quit]x[/]", "[$primary]x"])
def test_content_is_never_markup(text: str) -> None:
    """Would catch: brackets that vanish, crash the app, or become a link that runs an action."""
    content = inert(text)
    assert content.plain == text
    assert not content.spans


def test_the_inspector_sees_everything() -> None:
    """Would catch: spaces, newlines and zero-width characters that can't be told apart in a chip."""
    assert visible(" a\n\t") == "␣a↵⇥"
    assert visible("\u200b\u200d\ufeff") == "<U+200B><U+200D><U+FEFF>"
    assert visible("\u00a0\u3000") == "<U+00A0><U+3000>"
    assert visible("\u202eevil") == "<U+202E>evil"
    assert visible("e\u0301") == "e◌\u0301"
    assert visible("❤\ufe0f") == "❤<U+FE0F>"


@given(text=st.text(min_size=1))
def test_every_character_leaves_a_mark(text: str) -> None:
    """Would catch: a chip that looks empty."""
    for character in text:
        assert visible(character).strip()
