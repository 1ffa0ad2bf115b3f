"""Pieces become chips that never show half a character and never lose a byte."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinychat.pictures import visible_bytes
from tinychat.protocol import Piece
from tinychat.ui.pieces import chip_start, chips, lost_bytes, piece_at, token_count


def split(data: bytes, cuts: list[int]) -> tuple[Piece, ...]:
    """Cut bytes into pieces at the given offsets."""
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    return tuple(Piece(100 + a, data[a:b], a) for a, b in itertools.pairwise(edges))


TEXT = st.text(alphabet=st.sampled_from(list("ab 日é🦙👩\u200d👦\n")), max_size=20)


@given(text=TEXT, cuts=st.lists(st.integers(1, 60), max_size=20))
def test_chips_hold_whole_characters_and_every_byte(text: str, cuts: list[int]) -> None:
    """Would catch: the crash of decoding a token's bytes alone, and bytes dropped while grouping."""
    pieces = split(text.encode(), cuts)
    grouped = list(chips(pieces))
    assert b"".join(chip.data for chip in grouped) == text.encode()
    assert [i for chip in grouped for i in chip.ids] == [p.token_id for p in pieces]
    for chip in grouped:
        chip.data.decode()
    for index in range(len(pieces)):
        start = chip_start(pieces, index)
        assert next(chips(pieces, start)) in grouped


def test_fragments_of_one_character_are_one_chip_with_several_ids() -> None:
    """Would catch: the llama drawn as three question marks."""
    pieces = split("a🦙b".encode(), [1, 3, 5])
    assert [(c.label, c.ids) for c in chips(pieces)] == [("a", (100,)), ("🦙²", (101, 103)), ("b", (105,))]


def test_bytes_without_a_token_are_counted() -> None:
    """Would catch: a dropped character nobody is told of."""
    data = "é".encode()
    pieces = (Piece(5, b"a", 0), Piece(None, data[:1], 1), Piece(None, data[1:], 2))
    assert lost_bytes(pieces) == 2
    assert token_count(pieces) == 1
    assert [c.lost for c in chips(pieces)] == [0, 2]


def test_bytes_that_are_no_character_are_shown_in_hexadecimal() -> None:
    """Would catch: a strict decode of foreign bytes."""
    assert visible_bytes(b"\xf0\x9f") == "<F0 9F>"


@pytest.mark.parametrize(("offset", "index"), [(0, 0), (1, 1), (2, 1), (3, 2), (99, 2)])
def test_the_piece_at_the_cursor(offset: int, index: int) -> None:
    """Would catch: the neighbour's id shown at a border between pieces."""
    pieces = (Piece(1, b"a", 0), Piece(2, b"bc", 1), Piece(3, b"d", 3))
    assert piece_at(pieces, offset) == index


def test_no_pieces() -> None:
    """Would catch: an index error on an empty draft."""
    assert list(chips(())) == []
    assert piece_at((), 3) == 0
