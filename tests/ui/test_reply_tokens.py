"""The figures of a reply's tokens, and the levels they are coloured by."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinychat.protocol import Probed, TokenEmitted
from tinychat.ui.measures import GLYPHS, MEASURES, UNKNOWN
from tinychat.ui.reply_tokens import ReplyTokens, surprise
from tinychat.ui.token_legend import scale, summary


def token(index: int, chance: float | None, accepted: bool = False, entropy: float | None = None) -> TokenEmitted:
    logprob = None if chance is None else math.log(chance)
    return TokenEmitted(1, index, 7, b"a", "a", "", logprob, 1 + index, entropy, accepted=accepted)


def test_surprise_is_minus_log2_of_the_probability() -> None:
    """Would catch: nats where bits are said, and a minus zero."""
    assert surprise(token(0, 0.25)) == pytest.approx(2)
    assert str(surprise(token(0, 1.0))) == "0.0"
    assert surprise(token(0, None)) is None


def test_perplexity_by_hand() -> None:
    """Would catch: an arithmetic mean of probabilities in place of the geometric one, and a first token left out."""
    reply = ReplyTokens(1)
    reply.add([token(0, 0.5), token(1, 0.125)])
    reply.add([token(2, 0.25)])
    assert reply.mean_surprise == pytest.approx((1 + 3 + 2) / 3)
    assert reply.perplexity == pytest.approx((0.5 * 0.125 * 0.25) ** (-1 / 3))
    assert summary(reply) == "mean surprise 2.00 bits, perplexity 4 over 3 tokens"


def test_no_probabilities_are_no_zeros() -> None:
    """Would catch: a perplexity of 1 for a reply that the engine told nothing of."""
    reply = ReplyTokens(1)
    reply.add([token(0, None)])
    assert reply.mean_surprise is None
    assert reply.perplexity is None
    assert summary(reply) == "1 token; the engine told no probabilities of them"


def test_where_a_token_came_from() -> None:
    """Would catch: the token that a person chose told as drawn, and those before it as chosen."""
    reply = ReplyTokens(2, forced=3, branch_of=1)
    reply.add([token(n, 0.5, accepted=n == 4) for n in range(5)])
    assert [reply.origin(n) for n in range(5)] == ["repeated", "repeated", "dictated", "drawn", "drafted, then drawn"]
    assert "3 not drawn" in summary(reply)


def test_only_so_many_probes_are_kept_and_the_latest_of_them() -> None:
    """Would catch: a long reply with the view of the layers open that eats the memory."""
    reply = ReplyTokens(1)
    for index in range(200):
        reply.keep_probe(Probed(1, index))
    assert list(reply.probes) == list(range(136, 200))


@pytest.mark.parametrize(
    ("name", "levels"),
    [("surprise", [0, 1, 2, 3, 4]), ("probability", [0, 1, 2, 3, 4]), ("rank", [0, 1, 2, 2, 2])],
)
def test_levels_by_hand(name: str, levels: list[int]) -> None:
    """Would catch: a scale that runs the wrong way, and a legend whose numbers are not those of the drawing."""
    measure = next(each for each in MEASURES if each.name == name)
    tokens = [token(n, chance) for n, chance in enumerate((0.95, 0.6, 0.3, 0.1, 0.01))]
    assert [measure.level(each) for each in tokens] == levels
    assert measure.level(tokens[0]) == 0, "the first level is what was expected"


def test_the_higher_the_number_the_higher_the_glyph() -> None:
    """Would catch: a tall bar for a small probability."""
    measure = next(each for each in MEASURES if each.name == "probability")
    assert measure.glyph(measure.level(token(0, 0.95))) == "▇"
    assert measure.glyph(measure.level(token(0, 0.01))) == "▁"
    assert measure.glyph(measure.level(token(0, None))) == UNKNOWN


@given(st.floats(1e-300, 1.0), st.integers(0, 10**6), st.floats(0, 12) | st.just(math.nan))
def test_every_number_has_a_level(chance: float, index: int, entropy: float) -> None:
    """Would catch: a crash on a NaN or an extreme, and a level that has no colour."""
    for measure in MEASURES:
        level = measure.level(token(index, chance, entropy=entropy))
        assert level in (None, 0, 1, 2, 3, 4)
        assert len(measure.glyph(level)) == 1
        assert all(glyph in scale(measure) for glyph in GLYPHS)
