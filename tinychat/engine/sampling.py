"""From logits to the next token: a chain of pure functions in fp32.

    bias and bans -> repetition -> frequency, presence -> greedy? -> temperature -> top-k -> top-p -> min-p -> draw

The stages are in `chain.py`. The second order, llama.cpp's, applies the temperature after the filters; for filters of
this kind that is the same as filtering at temperature 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import torch

from tinychat.engine.chain import (
    ADJUSTMENTS,
    FILTERS,
    GREEDY_BELOW,
    History,
    Ranking,
    drawn,
    filter_temperature,
)
from tinychat.kernels import Kernels, plain
from tinychat.protocol import Detail, SamplerSettings

ALTERNATIVES = 8
_BUILT_IN: Final = SamplerSettings()  # one for all: its ranges are checked each time that one is made


@dataclass(frozen=True, slots=True)
class Choice:
    """The token that was drawn. logprob, rank, entropy and alternatives are the model's own, before the chain."""

    token_id: int
    logprob: float | None = None
    """In nats."""
    rank: int | None = None
    """From 1."""
    entropy: float | None = None
    """In nats."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """(id, probability), best first."""
    accepted: bool = False
    """Whether the token had been drafted."""
    draw: float = 0.0
    """The random number that decided, from 0 to 1; of a greedy or dictated token it was drawn, too."""
    settings: SamplerSettings = _BUILT_IN
    """Those that were in force."""
    forced: bool = False
    """Whether it was dictated."""
    states: torch.Tensor | None = field(default=None, compare=False)
    """What the head made its logits of, activations [n, C]: one row, or one for each token that was checked with it;
    None: not kept."""
    row: int = field(default=0, compare=False)
    """Which row of `states` is its own."""


def choose(
    logits: torch.Tensor,
    settings: SamplerSettings,
    history: History,
    generator: torch.Generator,
    detail: Detail,
    forced: int | None = None,
    kernels: Kernels = plain,
) -> Choice:
    """Choose the next token.

    Args:
        logits: fp32 [V], all finite.
        settings: The chain's numbers.
        history: What the penalties count.
        generator: Gives exactly one draw a token, greedy or not, so that a slider never shifts later draws.
        detail: What to report beside the id.
        forced: The id to take, whatever the chain would say.
        kernels: Rank and count.
    """
    number = draw(generator)
    if forced is not None:
        token_id = forced
    else:
        adjusted = penalize(logits, settings, history)
        if settings.temperature < GREEDY_BELOW:
            token_id = int(kernels.best(adjusted, 1)[1])
        else:
            ranking = Ranking(adjusted, kernels)
            token_id = drawn(ranking, _kept(ranking, settings), settings.temperature, number)
    return _report(logits, token_id, number, detail, kernels)


def draw(generator: torch.Generator) -> float:
    """Return the next random number, fp64 from 0 to 1."""
    return float(torch.rand(1, generator=generator, dtype=torch.float64))


def twin(generator: torch.Generator) -> torch.Generator:
    """Return another that gives the same numbers from here on: to look at them and take none."""
    other = torch.Generator()
    other.set_state(generator.get_state())
    return other


def penalize(logits: torch.Tensor, settings: SamplerSettings, history: History) -> torch.Tensor:
    """Return logits [V] after bias, repetition, frequency and presence; the argument is never changed.

    Raises:
        TinychatError: The bias leaves no token to choose.
    """
    for stage in ADJUSTMENTS:
        if stage.acts(settings):
            logits = stage.apply(logits, settings, history)
    return logits


def survivors(
    logits: torch.Tensor, settings: SamplerSettings, kernels: Kernels = plain
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens the filters leave, best first, and their probabilities.

    Args:
        logits: fp32 [V], after the penalties.
        settings: Temperature above 0, top-k, top-p, min-p and the order.
        kernels: Rank.

    Returns:
        ids, int64 [n], and probabilities, fp64 [n], that sum to 1; n is at least 1.
    """
    ranking = Ranking(logits, kernels)
    kept = _kept(ranking, settings)
    values, ids = ranking.best(kept)
    return ids, torch.softmax(values.double() / settings.temperature, dim=0)


def _kept(ranking: Ranking, settings: SamplerSettings) -> int:
    """Return how many of the best tokens the filters keep."""
    kept, temperature = ranking.size, filter_temperature(settings)
    for stage in FILTERS:
        if stage.acts(settings):
            kept = stage.keep(ranking, kept, settings, temperature)
    return kept


def _report(logits: torch.Tensor, token_id: int, number: float, detail: Detail, kernels: Kernels) -> Choice:
    if detail == "none":
        return Choice(token_id, draw=number)
    logprob, rank, entropy = kernels.statistics(logits, token_id)
    alternatives: tuple[tuple[int, float], ...] = ()
    if detail == "full":
        values, ids = kernels.best(logits, min(ALTERNATIVES, len(logits)))
        mass = float(logits[token_id]) - logprob
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        alternatives = tuple((other, math.exp(value - mass)) for other, value in pairs)
    return Choice(token_id, logprob, rank, entropy, alternatives, draw=number)
