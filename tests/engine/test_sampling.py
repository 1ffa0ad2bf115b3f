"""The sampler chain: kept sets worked out by hand, the values at the edges, seeds and draws."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from tinychat.engine.sampling import ALTERNATIVES, Choice, History, choose, penalize, survivors
from tinychat.errors import TinychatError
from tinychat.protocol import SamplerSettings

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
ORDERS = ["transformers", "llama.cpp"]


def settings(**changes: object) -> SamplerSettings:
    """Return settings that filter nothing but what is named."""
    return SamplerSettings(**OFF | changes)


def kept(logits: list[float], **changes: object) -> list[int]:
    return survivors(torch.tensor(logits), settings(**changes))[0].tolist()


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def history(vocabulary: int, prompt: list[int] | None = None, reply: list[int] | None = None) -> History:
    made = History(prompt or [], vocabulary)
    for token_id in reply or []:
        made.add(token_id)
    return made


def draw(logits: torch.Tensor, count: int, *, seed: int = 0, **changes: object) -> list[int]:
    """Return the ids of `count` draws in a row."""
    generator = torch.Generator().manual_seed(seed)
    nothing, chosen = history(len(logits)), settings(**changes)
    return [choose(logits, chosen, nothing, generator, "none").token_id for _ in range(count)]


# ---------------------------------------------------------------------------------------------------------------------
# Kept sets


@pytest.mark.parametrize(
    ("logits", "changes", "transformers", "llama_cpp"),
    [
        # p = .843 .114 .043 at T 0.5, .665 .245 .090 at T 1.
        ([3, 2, 1], {"temperature": 0.5, "top_p": 0.8}, [0], [0, 1]),
        # p/p0 = 1 .607 .368 at T 2, 1 .368 .135 at T 1.
        ([3, 2, 1], {"temperature": 2.0, "min_p": 0.3}, [0, 1, 2], [0, 1]),
        ([1, 1, 1, 0], {"top_k": 2}, [0, 1], [0, 1]),
        (logs(0.5, 0.25, 0.25), {"top_p": 0.5}, [0], [0]),
        (logs(0.4, 0.3, 0.2, 0.1), {"top_p": 0.7}, [0, 1], [0, 1]),
        # The token that crosses p is kept.
        (logs(0.4, 0.3, 0.2, 0.1), {"top_p": 0.8}, [0, 1, 2], [0, 1, 2]),
        (logs(0.4, 0.3, 0.2, 0.1), {"top_p": 0.71}, [0, 1, 2], [0, 1, 2]),
        # p is a share of what top-k left: .57 .43 of two tokens.
        (logs(0.4, 0.3, 0.2, 0.1), {"top_k": 2, "top_p": 0.5}, [0], [0]),
        (logs(0.4, 0.3, 0.2, 0.1), {"top_k": 2, "top_p": 0.6}, [0, 1], [0, 1]),
        # Best first, whatever the ids.
        (logs(0.1, 0.4, 0.2, 0.3), {"top_p": 0.65}, [1, 3], [1, 3]),
        (logs(0.1, 0.4, 0.2, 0.3), {"min_p": 0.5}, [1, 3, 2], [1, 3, 2]),
        (logs(0.1, 0.4, 0.2, 0.3), {"min_p": 0.51}, [1, 3], [1, 3]),
    ],
)
def test_kept_by_hand(logits, changes, transformers, llama_cpp):
    """Catches a filter in another's place, a nucleus without the token that crosses it, a share of the wrong whole."""
    assert kept(logits, **changes) == transformers
    assert kept(logits, **changes, order="llama.cpp") == llama_cpp


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("top_p", [0.0, 1e-9, 0.0001, 0.05])
def test_top_p_keeps_one(order, top_p):
    """Catches an empty nucleus."""
    assert kept([1.0, 3.0, 2.0], top_p=top_p, order=order) == [1]


@pytest.mark.parametrize("order", ORDERS)
def test_one_is_off(order):
    """Catches a sum of probabilities that reaches 1.0000002 and drops, or 0.9999998 and keeps, by rounding."""
    logits = torch.randn(50257, generator=torch.Generator().manual_seed(0)).tolist()
    assert len(kept(logits, top_p=1.0, min_p=0.0, order=order)) == 50257


@pytest.mark.parametrize("order", ORDERS)
def test_top_k_of_any_size(order):
    """0 is off, more than the vocabulary is all of it, exactly the vocabulary too."""
    logits = [0.5, 2.0, 1.0]
    assert kept(logits, top_k=0, order=order) == [1, 2, 0]
    assert kept(logits, top_k=1, order=order) == [1]
    assert kept(logits, top_k=3, order=order) == [1, 2, 0]
    assert kept(logits, top_k=4, order=order) == [1, 2, 0]
    assert kept(logits, top_k=1000, order=order) == [1, 2, 0]


@pytest.mark.parametrize("size", [4, 300, 2000])
@pytest.mark.parametrize("top_k", [1, 3, 255, 256, 257, 1024, 1999])
def test_ties_go_by_id(size, top_k):
    """Exactly k survive, the lowest ids first, wherever the ranking stops to look."""
    best = [size - 1, *range(size - 1)]
    logits = torch.zeros(size)
    logits[-1] = 1.0
    assert survivors(logits, settings(top_k=top_k))[0].tolist() == best[: min(top_k, size)]
    assert survivors(torch.zeros(size), settings(top_k=top_k))[0].tolist() == list(range(min(top_k, size)))


@pytest.mark.parametrize("size", [10, 5000])
def test_greedy_takes_the_lowest_of_ties(size):
    """As transformers' argmax does."""
    logits = torch.zeros(size)
    logits[[3, 7, size - 1]] = 2.0
    assert draw(logits, 1, temperature=0.0) == [3]
    assert draw(logits, 1, top_k=1) == [3]
    assert draw(logits, 5, top_p=0.0) == [3] * 5


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [7, 2000])
def test_the_grid(order, size):
    """Somebody always survives, the best token among them, and the probabilities are a distribution."""
    logits = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 3
    best = int(logits.argmax())
    for temperature, top_k, top_p, min_p in product(
        (1e-5, 0.1, 1.0, 2.0), (0, 1, 2, size - 1, size, size + 1), (0.0, 0.5, 0.999999, 1.0), (0.0, 0.5, 1.0)
    ):
        ids, probabilities = survivors(
            logits, SamplerSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order)
        )
        assert 1 <= len(ids) == len(set(ids.tolist())) <= min(top_k or size, size)
        assert ids[0] == best
        assert abs(float(probabilities.sum()) - 1) < 1e-12
        assert bool((probabilities >= 0).all())
        assert bool((probabilities.diff() <= 0).all())
        if top_p == 0.0 or min_p == 1.0 or top_k == 1:
            assert len(ids) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Temperature


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-6, 9e-6])
def test_no_temperature_is_greedy(temperature):
    """Catches a division by zero and an overflow: logits of 1e5 by 1e-6."""
    logits = torch.tensor([-1e5, 1e5, 1e5 - 0.1])
    assert draw(logits, 20, temperature=temperature) == [1] * 20


@pytest.mark.parametrize("order", ORDERS)
def test_smallest_temperature(order):
    """Just above greedy nothing overflows, and the best token has all the mass."""
    logits = torch.tensor([-1e4, 1e4, 9e3])
    ids, probabilities = survivors(logits, settings(temperature=1e-5, order=order))
    assert (ids[0], float(probabilities[0])) == (1, 1.0)
    assert draw(logits, 20, temperature=1e-5, order=order) == [1] * 20


def test_temperature_flattens():
    """p^(1/T), normalised: of logits ln 1, ln 4 at T = 2, shares 1 and 2."""
    ids, probabilities = survivors(torch.tensor(logs(1, 4)), settings(temperature=2.0))
    assert ids.tolist() == [1, 0]
    torch.testing.assert_close(probabilities, torch.tensor([2 / 3, 1 / 3], dtype=torch.float64), rtol=1e-6, atol=0)


# ---------------------------------------------------------------------------------------------------------------------
# Penalties and bias


def test_repetition_by_hand():
    """Positive is divided, negative multiplied, zero stays, unseen stays; each token once, though seen five times."""
    logits = torch.tensor([4.0, -4.0, 0.0, 1.0])
    seen = history(4, [0, 0, 0, 0, 1], [0, 2, 2])
    assert penalize(logits, settings(repetition_penalty=2.0), seen).tolist() == [2.0, -8.0, 0.0, 1.0]
    assert penalize(logits, settings(repetition_penalty=0.5), seen).tolist() == [8.0, -2.0, 0.0, 1.0]
    assert logits.tolist() == [4.0, -4.0, 0.0, 1.0], "the model's own logits are reported later"


def test_repetition_lowers_every_token():
    """Catches a division of negative logits, which makes their tokens likelier."""
    logits = torch.tensor([2.0, -2.0])
    expected = torch.tensor([4 / 3, -3.0])
    torch.testing.assert_close(penalize(logits, settings(repetition_penalty=1.5), history(2, [0, 1])), expected)


def test_frequency_and_presence_count_the_reply():
    """A token of the prompt alone isn't penalised; frequency grows with each occurrence, presence doesn't."""
    logits = torch.zeros(4)
    seen = history(4, [0, 0, 1], [1, 2, 2, 2])
    assert penalize(logits, settings(frequency_penalty=0.5), seen).tolist() == [0.0, -0.5, -1.5, 0.0]
    assert penalize(logits, settings(presence_penalty=0.5), seen).tolist() == [0.0, -0.5, -0.5, 0.0]
    both = settings(frequency_penalty=-1.0, presence_penalty=0.25)
    assert penalize(logits, both, seen).tolist() == [0.0, 0.75, 2.75, 0.0]


def test_bias_bans_and_forces():
    """Minus infinity never comes, alone or with others, in any order of filters; a penalty doesn't bring it back."""
    logits = torch.tensor([5.0, 4.0, 3.0, 2.0])
    ban = ((0, -math.inf), (2, -math.inf))
    for order in ORDERS:
        drawn = draw(logits, 200, logit_bias=ban, order=order)
        assert set(drawn) == {1, 3}
        assert set(draw(logits, 200, logit_bias=ban, order=order, repetition_penalty=2.0, top_k=3)) <= {1, 3}
    assert draw(logits, 50, logit_bias=((0, -math.inf), (1, -math.inf), (2, -math.inf))) == [3] * 50
    assert draw(logits, 1, logit_bias=((3, 3.5),), temperature=0.0) == [3]
    assert draw(logits, 1, logit_bias=((0, -1.0), (0, -1.0)), temperature=0.0) == [1], "biases of one token add up"


def test_bias_of_a_token_that_is_none():
    """Ids past the vocabulary are of a larger model's; a negative one would count from the end."""
    logits = torch.tensor([1.0, 0.0])
    assert draw(logits, 1, logit_bias=((2, 9.0), (99, 9.0)), temperature=0.0) == [0]
    with pytest.raises(ValueError, match="-1"):
        settings(logit_bias=((-1, 9.0),))


@pytest.mark.parametrize("amount", [math.nan, math.inf])
def test_bias_that_is_no_number(amount):
    """Plus infinity minus plus infinity is no probability."""
    with pytest.raises(ValueError, match="logit_bias"):
        settings(logit_bias=((0, amount),))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_everything_banned(temperature):
    """Catches a token that comes although it is banned: there is none left to choose."""
    with pytest.raises(TinychatError, match="bans every token"):
        draw(torch.zeros(2), 1, logit_bias=((0, -math.inf), (1, -math.inf)), temperature=temperature)


def test_order_of_penalties():
    """Bias, then repetition, then frequency and presence: (2 + 2) / 2 - 0.5 - 0.25."""
    seen = history(1, [0], [0])
    chain = settings(logit_bias=((0, 2.0),), repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    assert penalize(torch.tensor([2.0]), chain, seen).tolist() == [1.25]


# ---------------------------------------------------------------------------------------------------------------------
# Draws


@pytest.mark.parametrize(
    "changes", [{"temperature": 0.0}, {"top_k": 1}, {"top_k": 40, "top_p": 0.9}, {}, {"min_p": 0.3}]
)
@pytest.mark.parametrize("forced", [None, 2])
@pytest.mark.parametrize("detail", ["none", "basic", "full"])
def test_one_draw_a_token(changes, forced, detail):
    """Catches a setting that shifts later draws: moving a slider for one token must not change all that follow."""
    logits = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    ours, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    choose(logits, settings(**changes), history(2000), ours, detail, forced)
    torch.rand(1, generator=theirs, dtype=torch.float64)
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_same_seed_same_draws():
    """The draws of a seed are its own, not the global generator's, and a filter that keeps all changes none of them."""
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(2)) * 2
    first = draw(logits, 60, seed=11)
    torch.manual_seed(99)
    assert draw(logits, 60, seed=11) == first
    assert draw(logits, 60, seed=11, top_k=3000) == first
    assert draw(logits, 60, seed=12) != first
    few = draw(logits, 60, seed=11, top_k=20)
    again = draw(logits, 60, seed=11, top_k=20, order="llama.cpp")
    assert few == again != first


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Return how many standard deviations the statistic lies above its mean; tokens expected rarely go together."""
    rare = expected < 10
    if bool(rare.any()):
        counts = torch.cat((counts[~rare], counts[rare].sum()[None]))
        expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 2.0},
        {"top_k": 50},
        {"top_p": 0.8, "temperature": 1.3},
        {"min_p": 0.05, "order": "llama.cpp"},
    ],
    ids=str,
)
def test_draws_follow_the_probabilities(changes):
    """Catches a cumulated sum that starts one token late, a mass of the wrong tokens, and a rare end never reached."""
    logits = torch.randn(2000, generator=torch.Generator().manual_seed(3)) * 1.5
    ids, probabilities = survivors(logits, settings(**changes))
    drawn = torch.tensor(draw(logits, 4000, **changes))
    counts = torch.bincount(drawn, minlength=2000)[ids].double()
    assert counts.sum() == 4000
    assert abs(chi_square(counts, probabilities * 4000)) < 4


def test_the_last_token_can_come():
    """Catches a draw close to 1 that falls off the end, or never reaches it."""
    logits = torch.tensor([0.0, -1.0, -2.0])
    for value, expected in ((0.0, 0), (1 - 2**-53, 2)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "rand", lambda *a, value=value, **k: torch.tensor([value], dtype=torch.float64))
            assert draw(logits, 1) == [expected]
            assert draw(logits, 1, top_k=2) == [min(expected, 1)]


# ---------------------------------------------------------------------------------------------------------------------
# What is reported


def report(logits: torch.Tensor, forced: int, detail: str = "full") -> Choice:
    return choose(logits, settings(), history(len(logits)), torch.Generator().manual_seed(0), detail, forced)


def test_reports_are_the_model_s_own():
    """logprob, rank and entropy of the distribution before the chain, in nats, held to fp64."""
    for seed, size, spread in ((0, 5, 1.0), (1, 2000, 4.0), (2, 49152, 2.0)):
        logits = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread
        exact = logits.double().log_softmax(0)
        order = logits.argsort(descending=True).tolist()
        for place in (0, 1, size // 2, size - 1):
            made = report(logits, order[place])
            assert made.token_id == order[place]
            assert made.rank == place + 1
            assert made.logprob == pytest.approx(float(exact[order[place]]), rel=1e-5, abs=1e-6)
            assert made.entropy == pytest.approx(-float((exact.exp() * exact).sum()), rel=1e-5)
            assert [token_id for token_id, _ in made.alternatives] == order[:ALTERNATIVES]
            for token_id, probability in made.alternatives:
                assert probability == pytest.approx(float(exact[token_id].exp()), rel=1e-5)


def test_reports_ignore_the_chain():
    """Temperature, filters, penalties and bias change what is drawn, not what the model is said to think."""
    logits = torch.tensor(logs(0.5, 0.3, 0.2))
    chain = settings(temperature=0.1, top_k=1, repetition_penalty=1.9, logit_bias=((0, -math.inf),))
    made = choose(logits, chain, history(3, [1]), torch.Generator().manual_seed(0), "full")
    assert made.token_id == 2
    assert (made.rank, made.logprob) == (3, pytest.approx(math.log(0.2), rel=1e-5))
    assert [token_id for token_id, _ in made.alternatives] == [0, 1, 2]


def test_certain_and_uniform():
    """The two ends of entropy: 0 where one token has all the mass, ln V where all are equal."""
    certain = torch.full((100,), -1e9)
    certain[7] = 0.0
    made = report(certain, 7)
    assert (made.logprob, made.rank, made.entropy) == (0.0, 1, 0.0)
    made = report(torch.zeros(100), 42)
    assert made.entropy == pytest.approx(math.log(100), rel=1e-6)
    assert made.rank == 1, "as good as the best"


@pytest.mark.parametrize(("detail", "reported", "shown"), [("none", False, 0), ("basic", True, 0), ("full", True, 5)])
def test_detail(detail, reported, shown):
    """Each detail reports what it says, and a small vocabulary has fewer alternatives."""
    made = report(torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]), 0, detail)
    assert all((value is not None) == reported for value in (made.logprob, made.rank, made.entropy))
    assert len(made.alternatives) == shown
