"""The sampler beside transformers' processors, and beside a chain that sorts everything in fp64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rulers import KERNELS
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tinychat.engine.sampling import History, choose, penalize, survivors
from tinychat.protocol import SamplerSettings

relaxed = settings(deadline=None, max_examples=150)
TEMPERATURES = st.floats(0.05, 4.0)
FILTERS = st.fixed_dictionaries(
    {
        "temperature": TEMPERATURES,
        "top_k": st.sampled_from([0, 1, 2, 7, 40, 255, 256, 257, 1000, 1024, 1025, 100_000]),
        "top_p": st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.01, 0.9999)),
        "min_p": st.one_of(st.sampled_from([0.0, 1.0]), st.floats(1e-6, 0.9)),
    }
)
SIZES = st.sampled_from([1, 2, 3, 50, 63, 64, 65, 255, 256, 257, 1500, 3000, 8191, 8192, 9999])
PATHS = st.sampled_from(KERNELS)


def random(seed: int, size: int, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


@dataclass
class Sorted:
    """The chain as it is defined: everything sorted, everything in fp64, one filter after the other."""

    ids: torch.Tensor
    probabilities: torch.Tensor
    doubt: float
    """How near a token came to the border of a filter, as a share of the mass or of the best probability."""


def by_sorting(logits: torch.Tensor, chain: SamplerSettings) -> Sorted:
    values, ids = torch.sort(logits.double(), descending=True, stable=True)
    temperature = chain.temperature if chain.order == "transformers" else 1.0
    count, doubt = len(ids), math.inf
    if chain.top_k:
        count = min(count, chain.top_k)
    if chain.top_p < 1:
        shares = torch.softmax(values[:count] / temperature, 0)
        before = torch.cat((torch.zeros(1, dtype=torch.float64), shares.cumsum(0)[:-1]))
        doubt = min(doubt, float((before - chain.top_p)[1:].abs().min())) if count > 1 else doubt
        count = max(1, int((before < chain.top_p).sum()))
    if chain.min_p > 0:
        shares = torch.exp((values[:count] - values[0]) / temperature)
        doubt = min(doubt, float((shares / chain.min_p - 1)[1:].abs().min())) if count > 1 else doubt
        count = max(1, int((shares >= chain.min_p).sum()))
    return Sorted(ids[:count], torch.softmax(values[:count] / chain.temperature, 0), doubt)


@relaxed
@given(st.integers(0, 999), SIZES, FILTERS, PATHS)
def test_transformers_keeps_the_same(seed, size, filters, kernels):
    """Kept set and probabilities are those of transformers' warpers in its own order. (Random logits have no ties, of
    which transformers' top-k keeps all.)"""
    logits = random(seed, size)
    chain = SamplerSettings(**filters)
    # Its sums are in fp32: a token closer than that to a border may fall on either side.
    assume(by_sorting(logits, chain).doubt > 1e-4)
    scores = TemperatureLogitsWarper(float(chain.temperature))(None, logits[None])
    if chain.top_k:
        scores = TopKLogitsWarper(chain.top_k)(None, scores)
    if chain.top_p < 1:
        scores = TopPLogitsWarper(float(chain.top_p))(None, scores)
    if chain.min_p > 0:
        scores = MinPLogitsWarper(float(chain.min_p))(None, scores)
    theirs = scores[0].softmax(-1)
    ids, probabilities = survivors(logits, chain, kernels)
    assert sorted(ids.tolist()) == scores[0].isfinite().nonzero().flatten().tolist()
    torch.testing.assert_close(probabilities.float(), theirs[ids], rtol=2e-4, atol=1e-7)


@relaxed
@given(st.integers(0, 999), SIZES, st.floats(0.1, 4.9), st.lists(st.integers(0, 2999), max_size=60))
def test_transformers_penalises_the_same(seed, size, penalty, seen):
    """Prompt and reply together, each id once, are what transformers' processor gets as `input_ids`."""
    seen = [token_id % size for token_id in seen] or [0]
    logits = random(seed, size)
    half = len(seen) // 2
    history = History(seen[:half], size)
    for token_id in seen[half:]:
        history.add(token_id)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([seen]), logits[None].clone())[0]
    ours = penalize(logits, SamplerSettings(repetition_penalty=penalty), history)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


@relaxed
@given(
    st.integers(0, 999),
    SIZES,
    FILTERS,
    st.sampled_from(["transformers", "llama.cpp"]),
    st.booleans(),
    st.booleans(),
    PATHS,
)
def test_sorting_everything_chooses_the_same(seed, size, filters, order, tied, flat, kernels):
    """Ranking only as far as needed draws what a full sort draws: catches a rank that ends too early, ties that a
    partial sort breaks otherwise, and a mass that forgets the tokens nobody looked at."""
    logits = random(seed, size, 0.01 if flat else 3.0)
    if tied:
        logits = (logits * 4).round() / 4
    chain = SamplerSettings(**filters, order=order)
    expected = by_sorting(logits, chain)
    assume(expected.doubt > 1e-6)
    ids, probabilities = survivors(logits, chain, kernels)
    assert ids.tolist() == expected.ids.tolist()
    torch.testing.assert_close(probabilities, expected.probabilities, rtol=1e-9, atol=1e-15)
    generator, again = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    cumulated = expected.probabilities.cumsum(0)
    for _ in range(8):
        place = float(torch.rand(1, generator=again, dtype=torch.float64))
        chosen = choose(logits, chain, History([], size), generator, "none", None, kernels).token_id
        if float((cumulated - place).abs().min()) > 1e-9:
            assert chosen == int(expected.ids[int((cumulated <= place).sum())])


@relaxed
@given(st.integers(0, 999), SIZES, FILTERS, PATHS)
def test_the_chain_never_changes_the_model_s_logits(seed, size, filters, kernels):
    """Catches an in-place filter: the report, and the next setting of a slider, would see filtered logits."""
    logits = random(seed, size)
    before = logits.clone()
    chain = SamplerSettings(
        **filters, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=-0.5, logit_bias=((0, 1.0),)
    )
    choose(logits, chain, History([0], size), torch.Generator().manual_seed(0), "full", None, kernels)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 5.0])
def test_extreme_logits(temperature):
    """Catches an exponential that overflows: logits of +-3e4 occur, in fp16 checkpoints larger ones."""
    logits = torch.tensor([3e4, -3e4, 3e4 - 1, 0.0])
    for order in ("transformers", "llama.cpp"):
        chain = SamplerSettings(temperature=temperature, top_k=0, top_p=0.9, min_p=0.01, order=order)
        ids, probabilities = survivors(logits, chain)
        expected = by_sorting(logits, chain)
        assert ids.tolist() == expected.ids.tolist()
        assert bool(probabilities.isfinite().all())
