"""Where control tokens stand in a text: as the `tokenizers` library finds them, and only where they may."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from tinychat.text.control_tokens import ControlMatch, ControlTokens

TOKENS = [
    AddedToken("<a>", special=True, normalized=False),
    AddedToken("<a><a>", special=True, normalized=False),
    AddedToken("<l>", special=True, normalized=False, lstrip=True),
    AddedToken("<r>", special=True, normalized=False, rstrip=True),
    AddedToken("<lr>", special=True, normalized=False, lstrip=True, rstrip=True),
    AddedToken("word", special=True, normalized=False, single_word=True),
    AddedToken(" s", special=True, normalized=False),
]
PARTS_OF_WORDS = ["é", "_", "\u0301", "\u200d", "\u0663", "Ⅷ"]
OTHERS = [".", "½", "①", "²", "\u200b"]
SPACES = [" ", "\n", "\u3000", "\x1c", "\x85"]
FRAGMENTS = ["<a>", "<l>", "<r>", "<lr>", "word", " s", "x", "<", *PARTS_OF_WORDS, *OTHERS, *SPACES]


@given(parts=st.lists(st.sampled_from(FRAGMENTS), max_size=12))
@settings(deadline=None, max_examples=500)
def test_finds_what_the_library_finds(parts: list[str]) -> None:
    """Strip rules, the longest of two tokens, words inside of words; white space and parts of words that
    only Python takes for such."""
    text = "".join(parts)
    library = Tokenizer(BPE())
    library.add_special_tokens(TOKENS)
    encoding = library.encode(text)
    found = ControlTokens(dict(enumerate(TOKENS))).find(text)
    assert [match.token_id for match in found] == encoding.ids
    assert [match.end for match in found] == [end for _, end in encoding.offsets]
    # Where the space a token begins with was taken in by the one before, the library's matches overlap.
    ends = [0, *(match.end for match in found)]
    starts = [max(start, free) for (start, _), free in zip(encoding.offsets, ends, strict=False)]
    assert [match.start for match in found] == starts


def test_finds_only_within_the_stretches_asked_for() -> None:
    """A token half in the template and half in what a person typed; strip rules may look beyond."""
    tokens = ControlTokens(dict(enumerate(TOKENS)))
    assert tokens.find("<a> <r>  x<a>", [(0, 7), (11, 13)]) == [ControlMatch(0, 3, 0), ControlMatch(4, 9, 3)]


def test_without_control_tokens_nothing_is_found() -> None:
    """An empty pattern matches everywhere."""
    assert ControlTokens({}).find("anything") == []
