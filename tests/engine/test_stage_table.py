"""The table of what the sampler's stages do, beside the sampler itself."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rulers import KERNELS

from tinychat.engine.chain import GREEDY_BELOW, History
from tinychat.engine.sampling import choose, draw, penalize, survivors, twin
from tinychat.engine.stage_table import Row, StageTable, stage_table
from tinychat.errors import TinychatError
from tinychat.protocol import SamplerSettings

relaxed = settings(deadline=None, max_examples=120)
SIZES = st.sampled_from([1, 2, 3, 50, 64, 65, 300, 1500, 3000])
CHAINS = st.fixed_dictionaries(
    {
        "temperature": st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.05, 4.0)),
        "top_k": st.sampled_from([0, 1, 2, 7, 40, 256, 100_000]),
        "top_p": st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.01, 0.9999)),
        "min_p": st.one_of(st.sampled_from([0.0, 1.0]), st.floats(1e-6, 0.9)),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "presence_penalty": st.sampled_from([0.0, -0.5]),
        "order": st.sampled_from(["transformers", "llama.cpp"]),
        "logit_bias": st.sampled_from([(), ((0, 1.5),), ((1, -math.inf), (2, -math.inf))]),
    }
)
PATHS = st.sampled_from(KERNELS)
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def random(seed: int, size: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


def history_of(seed: int, size: int) -> History:
    made = History([seed % size], size)
    for token_id in (0, 3, 3, seed):
        made.add(token_id % size)
    return made


def everything(logits: torch.Tensor, chain: SamplerSettings, history: History, kernels=KERNELS[0]) -> StageTable:
    """Return the table with a row for each token."""
    return stage_table(logits, chain, history, kernels, best=len(logits), room=len(logits))


def chosen(table: StageTable, number: float) -> Row:
    """Return the one row whose interval holds a draw."""
    (row,) = (row for row in table.rows if row.interval and row.interval[0] <= number < row.interval[1])
    return row


@relaxed
@given(st.integers(0, 999), SIZES, CHAINS, PATHS)
def test_the_draw_chooses_what_was_chosen(seed, size, chain, kernels):
    """For any settings: the interval that the draw falls into is the token's that `choose` chose, of either order and
    greedy too; catches a table that ranks, filters or cumulates otherwise than the sampler."""
    logits, chain = random(seed, size), SamplerSettings(**chain)
    history, generator = history_of(seed, size), torch.Generator().manual_seed(seed)
    try:
        table = everything(logits, chain, history, kernels)
    except TinychatError:
        with pytest.raises(TinychatError, match="bans every token"):
            choose(logits, chain, history, generator, "none", None, kernels)
        return
    for _ in range(4):
        number = draw(twin(generator))
        made = choose(logits, chain, history, generator, "none", None, kernels)
        assert made.draw == number
        assert chosen(table, number).token_id == made.token_id


@relaxed
@given(st.integers(0, 999), SIZES, CHAINS, PATHS)
def test_intervals_tile(seed, size, chain, kernels):
    """They cover 0 to 1 without a gap; each is as wide as the last stage's probability; those who survive, and nobody
    else, have one; and these are the tokens that `survivors` leaves."""
    logits, chain, history = random(seed, size), SamplerSettings(**chain), history_of(seed, size)
    try:
        table = everything(logits, chain, history, kernels)
    except TinychatError:
        return
    alive = [row for row in table.rows if not row.removed_by]
    assert len(alive) == table.survivors
    assert all((row.interval is None) == bool(row.removed_by) for row in table.rows)
    ends = sorted(row.interval for row in alive if row.interval)
    assert (ends[0][0], ends[-1][1]) == (0.0, 1.0)
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    for row in alive:
        assert row.interval[1] - row.interval[0] == pytest.approx(row.probabilities[-1], abs=2e-6)
    if chain.temperature >= GREEDY_BELOW:
        ids, shares = survivors(penalize(logits, chain, history), chain, kernels)
        expected = {i: p for i, p in zip(ids.tolist(), shares.tolist(), strict=True) if p > 0}
        assert {row.token_id for row in alive} >= expected.keys()
        for row in alive:
            assert row.probabilities[-1] == pytest.approx(expected.get(row.token_id, 0.0), rel=1e-5, abs=1e-9)


@relaxed
@given(st.integers(0, 999), SIZES, CHAINS)
def test_every_column_is_a_distribution(seed, size, chain):
    """After each stage the probabilities of all tokens sum to 1, never rise from 0 again, and the first column is the
    model's softmax."""
    logits, chain, history = random(seed, size), SamplerSettings(**chain), history_of(seed, size)
    try:
        table = everything(logits, chain, history)
    except TinychatError:
        return
    assert table.rest == pytest.approx(0.0, abs=1e-9)
    raw = logits.double().softmax(0)
    for row in table.rows:
        assert row.probabilities[0] == pytest.approx(float(raw[row.token_id]), rel=1e-9)
        assert len(row.probabilities) == len(table.stages) + 1
        if row.removed_by:
            place = table.stages.index(row.removed_by) + 1
            assert set(row.probabilities[place:]) == {0.0}
    for column in zip(*(row.probabilities for row in table.rows), strict=True):
        assert sum(column) == pytest.approx(1.0, abs=1e-6)


@relaxed
@given(st.integers(0, 999), SIZES, CHAINS, st.sampled_from(["top_k", "top_p", "min_p"]))
def test_a_stage_removes_what_survives_without_it(seed, size, chain, name):
    """A token that is said to fall to the last filter survives when that one is off; catches a wrong culprit."""
    filters = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    chain = SamplerSettings(**{**chain, **{other: off for other, off in filters.items() if other != name}})
    logits, history = random(seed, size), history_of(seed, size)
    try:
        table = everything(logits, chain, history)
    except TinychatError:
        return
    without = SamplerSettings(
        **{field: getattr(chain, field) for field in SamplerSettings.__slots__} | {name: filters[name]}
    )
    again = {row.token_id: row.removed_by for row in everything(logits, without, history).rows}
    for row in table.rows:
        if row.removed_by == name.replace("_", "-"):
            assert again[row.token_id] == ""
        elif row.removed_by:
            assert again[row.token_id] == row.removed_by


def test_stages_that_are_on():
    """By name, in the order in which they act; those that do nothing are not there."""
    logits, history = random(0, 50), History([1], 50)
    everything_on = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "logit_bias": ((3, 1.0),),
    }

    def stages(**changes: object) -> tuple[str, ...]:
        return stage_table(logits, SamplerSettings(**OFF | changes), history, KERNELS[0]).stages

    first = ("bias", "repetition", "frequency and presence")
    assert stages() == ()
    assert stages(**everything_on) == (*first, "temperature", "top-k", "top-p", "min-p")
    assert stages(**everything_on, order="llama.cpp") == (*first, "top-k", "top-p", "min-p", "temperature")
    assert stages(**everything_on | {"temperature": 0.0}) == (*first, "greedy")


def test_by_hand():
    """p = .4 .3 .2 .1; top-k 3 leaves .444 .333 .222, top-p .7 of these two; the draws part at .571."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    chain = SamplerSettings(**OFF | {"top_k": 3, "top_p": 0.7})
    table = stage_table(logits, chain, History([], 4), KERNELS[0])
    assert table.stages == ("top-k", "top-p")
    assert [row.removed_by for row in table.rows] == ["", "", "top-p", "top-k"]
    assert table.survivors == 2
    expected = [(0.4, 4 / 9, 4 / 7), (0.3, 3 / 9, 3 / 7), (0.2, 2 / 9, 0), (0.1, 0, 0)]
    for row, columns in zip(table.rows, expected, strict=True):
        assert row.probabilities == pytest.approx(columns, abs=1e-6)
    assert [row.interval for row in table.rows[:2]] == [
        (0.0, pytest.approx(4 / 7)),
        (pytest.approx(4 / 7), 1.0),
    ]


def test_candidates():
    """The best by the model itself, those asked for, and of others that could be drawn the best, as far as there is
    room; the mass of all who aren't there; best first."""
    logits = torch.linspace(3, 0, 300)
    chain = SamplerSettings(**OFF | {"top_k": 5, "logit_bias": tuple((250 + n, 100.0 - n) for n in range(5))})
    table = stage_table(logits, chain, History([], 300), KERNELS[0], also=[299], best=10, room=13)
    assert [row.token_id for row in table.rows] == [*range(10), 250, 251, 299]
    assert [row.token_id for row in table.rows if not row.removed_by] == [250, 251]
    assert table.survivors == 5
    assert table.rest == pytest.approx(1 - sum(row.probabilities[0] for row in table.rows))
    assert table.rows[-1].removed_by == "top-k"
