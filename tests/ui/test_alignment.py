"""Two replies aligned by bytes: laws that hold however a text is cut, and ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinychat.protocol import FinishReason, TokenEmitted, TurnFinished
from tinychat.ui.alignment import Alignment, Difference
from tinychat.ui.reply_tokens import ReplyTokens


def token(index: int, piece: bytes, text: str | None = None) -> TokenEmitted:
    return TokenEmitted(1, index, index, piece, piece.decode("latin-1") if text is None else text, "", -1.0, 1, 1.0)


def reply(*pieces: bytes, end: FinishReason | None = None, end_piece: bytes = b"<|end|>") -> ReplyTokens:
    """A reply of these pieces; one that ended by itself has an end token, too."""
    made = ReplyTokens(1)
    made.add([token(n, piece) for n, piece in enumerate(pieces)])
    if end is not None:
        finish(made, end, end_piece)
    return made


def finish(made: ReplyTokens, end: FinishReason, end_piece: bytes = b"<|end|>") -> None:
    if end == "eos":
        made.add([token(len(made.tokens), end_piece, "")])
    made.finished = TurnFinished(1, end, (), "", "", 0, 0, len(made.tokens), 0.0, 0.0, 0.0, 7, "numba")


def aligned(first: ReplyTokens, second: ReplyTokens) -> Alignment:
    alignment = Alignment(first, second)
    alignment.update()
    return alignment


def cuts(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place for place in places if 0 < place < len(data)} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


DATA = st.binary(min_size=1, max_size=24)
PLACES = st.lists(st.integers(0, 24), max_size=12)


@given(DATA, PLACES, PLACES)
def test_one_text_cut_in_two_ways(data: bytes, one: list[int], other: list[int]) -> None:
    """No difference; stretches cover all of both, the same bytes each, and none could be parted further."""
    first, second = cuts(data, one), cuts(data, other)
    alignment = aligned(reply(*first, end="length"), reply(*second, end="length"))
    assert alignment.difference is None
    at = (0, 0)
    for row in alignment.stretches:
        assert (row.first[0], row.second[0]) == at
        at = row.first[1], row.second[1]
        mine, theirs = first[slice(*row.first)], second[slice(*row.second)]
        assert b"".join(mine) == b"".join(theirs)
        inner = [{sum(map(len, side[:n])) for n in range(1, len(side))} for side in (mine, theirs)]
        assert not inner[0] & inner[1]
    assert at == (len(first), len(second))


@given(DATA, DATA, DATA, PLACES, PLACES)
def test_two_texts(same: bytes, one: bytes, other: bytes, places: list[int], others: list[int]) -> None:
    """They part at the tokens that cover the first byte that differs, and at none before."""
    if one[0] == other[0]:
        other = bytes([one[0] ^ 1]) + other[1:]
    first, second = cuts(same + one, places), cuts(same + other, others)
    alignment = aligned(reply(*first), reply(*second))
    assert alignment.difference is not None
    i, j = alignment.difference.tokens
    before = b"".join(first[:i])
    assert before == b"".join(second[:j]) == same[: alignment.difference.byte]
    assert all(b"".join(first[:n]) != b"".join(second[:m]) or n <= i for n in range(i, len(first) + 1) for m in [j + 1])


@given(DATA, DATA, PLACES, PLACES)
def test_token_by_token_is_as_all_at_once(one: bytes, other: bytes, places: list[int], others: list[int]) -> None:
    """Catches a state that depends on when it was looked at."""
    pieces = cuts(one, places), cuts(other, others)
    growing = ReplyTokens(1), ReplyTokens(1)
    alignment = Alignment(*growing)
    parted = 0
    for n in range(max(map(len, pieces))):
        for made, side in zip(growing, pieces, strict=True):
            made.add([token(n, piece) for piece in side[n : n + 1]])
            parted += alignment.update()
    whole = aligned(reply(*pieces[0]), reply(*pieces[1]))
    assert (alignment.stretches, alignment.difference) == (whole.stretches, whole.difference)
    assert parted == (alignment.difference is not None)


@pytest.mark.parametrize("ended", [0, 1])
def test_one_ends_where_the_other_goes_on(ended: int) -> None:
    """The end is a difference, of a side that chose it."""
    replies = [reply(b"a", b"b", end="eos"), reply(b"a", b"b", b"c")]
    alignment = aligned(replies[ended], replies[1 - ended])
    assert alignment.difference == Difference((2, 2), 2)
    assert alignment.rows() == 3
    assert {alignment.row(2).first, alignment.row(2).second} == {(2, 2), (2, 3)}


@pytest.mark.parametrize("reason", ["cancelled", "length", "context", "failed"])
def test_one_is_stopped(reason: FinishReason) -> None:
    """That is no difference of the models; the tokens of the other are there all the same."""
    alignment = aligned(reply(b"a", b"b", end=reason), reply(b"ab", b"c", b"d"))
    assert alignment.difference is None
    assert [alignment.row(n).second for n in range(alignment.rows())] == [(0, 1), (1, 2), (2, 3)]
    assert alignment.row(2).first == (2, 2)


def test_both_end_by_other_tokens() -> None:
    """Vocabularies call the end by other names: no difference, neither before nor after it is known to be the end."""
    first, second = reply(b"a"), reply(b"a")
    alignment = Alignment(first, second)
    first.add([token(1, b"<|im_end|>", "")])
    second.add([token(1, b"</s>", "")])
    assert not alignment.update()
    for made in (first, second):
        made.finished = TurnFinished(1, "eos", (), "", "", 0, 0, 2, 0.0, 0.0, 0.0, 7, "numba")
    assert not alignment.update()
    assert alignment.difference is None
    assert alignment.rows() == 1
