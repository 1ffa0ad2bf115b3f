"""Chips are laid out whole, in order, in the room there is, however the tokens came."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from nasty import NASTY

from tinychat.protocol import TokenEmitted
from tinychat.ui.measures import MEASURES
from tinychat.ui.token_flow import TokenFlow

PIECES = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([text.encode() for text in NASTY]),
    st.sampled_from(["\n", " a\n", "日本", "👩‍👦", "e\u0301", "שלום", "\u202eevil", ""]).map(str.encode),
)


def tokens(pieces: list[bytes]) -> list[TokenEmitted]:
    return [TokenEmitted(1, index, 7, piece, "", logprob=-1.0) for index, piece in enumerate(pieces)]


@given(pieces=st.lists(PIECES, max_size=60), width=st.integers(1, 60), cuts=st.lists(st.integers(0, 60), max_size=5))
def test_appending_is_laying_out_the_whole(pieces: list[bytes], width: int, cuts: list[int]) -> None:
    """Would catch: a token lost, doubled, or elsewhere where a reply is streamed, and a line that is too long."""
    all_tokens = tokens(pieces)
    whole = TokenFlow(width, MEASURES[0], all_tokens)
    grown = TokenFlow(width, MEASURES[0])
    at = 0
    for cut in [*sorted(cuts), len(all_tokens)]:
        before = [list(line) for line in grown.lines]
        first = grown.append(all_tokens[at:cut])
        assert grown.lines[:first] == before[:first], "lines that are said not to change don't"
        at = max(at, cut)
    assert grown.lines == whole.lines
    assert [chip.index for line in whole.lines for chip in line] == list(range(len(pieces)))
    for number, line in enumerate(whole.lines):
        assert all(a.end == b.start for a, b in pairwise(line))
        assert not line or line[-1].end <= whole.width
        for chip in line:
            assert whole.line_of(chip.index) == number
            assert whole.at(number, chip.start) == whole.at(number, chip.end - 1) == chip.index


def test_a_line_ends_where_the_text_does() -> None:
    """Would catch: paragraphs run together, in which nobody finds a token again."""
    flow = TokenFlow(40, MEASURES[0], tokens([b"One", b".\n", b"\n", b"Two"]))
    assert [[chip.label for chip in line] for line in flow.lines] == [["One", ".↵"], ["↵"], ["Two"]]


def test_up_and_down_go_to_the_nearest_token() -> None:
    """Would catch: a focus that jumps to the end of a shorter line's neighbour, or out of the reply."""
    flow = TokenFlow(12, MEASURES[0], tokens([b"aa", b"bb", b"cc\n", b"d", b"eeeeee"]))
    assert flow.beside(1, 1) == 4
    assert flow.beside(4, -1) == 1
    assert flow.beside(0, -1) == 0
    assert flow.beside(4, 9) == 4
    assert flow.at(0, 99) is None
    assert flow.at(9, 0) is None
