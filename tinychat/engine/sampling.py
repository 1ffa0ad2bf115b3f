"""From logits to the next token: a chain of pure functions in fp32.

    bias and bans -> repetition -> frequency, presence -> greedy? -> temperature -> top-k -> top-p -> min-p -> draw

The filters keep the best n tokens for some n, so the chain never sorts a vocabulary: it ranks as many of the best as
the filters ask for (a full sort of 49,152 logits costs more than all else of a token's sampling). The second order,
llama.cpp's, applies the temperature after the filters; for filters of this kind that is the same as filtering at
temperature 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tinychat.errors import TinychatError
from tinychat.kernels import Kernels, plain
from tinychat.protocol import Detail, SamplerSettings

GREEDY_BELOW = 1e-5
"""Temperatures under this are 0: the division would overflow before it mattered."""
ALTERNATIVES = 8
_STEPS = (64, 256, 1024)
"""How many of the best tokens are ranked at first, and next; then all."""


class History:
    """Which tokens the penalties count: of the prompt and the reply, how often each occurs."""

    def __init__(self, prompt: Sequence[int], vocabulary: int) -> None:
        """Start a reply after `prompt`; ids are below `vocabulary`."""
        self.in_reply = torch.zeros(vocabulary)
        """fp32 [V]: how often the reply holds each token."""
        self._seen = set(prompt)
        self._ids = torch.empty(vocabulary, dtype=torch.long)
        self._ids[: len(self._seen)] = torch.tensor(sorted(self._seen), dtype=torch.long)

    @property
    def seen(self) -> torch.Tensor:
        """The tokens that prompt or reply hold, each once: int64 [n]."""
        return self._ids[: len(self._seen)]

    def add(self, token_id: int) -> None:
        """Count a token of the reply."""
        self.in_reply[token_id] += 1
        if token_id not in self._seen:
            self._ids[len(self._seen)] = token_id
            self._seen.add(token_id)


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
    draw = float(torch.rand(1, generator=generator, dtype=torch.float64))
    if forced is not None:
        token_id = forced
    else:
        adjusted = penalize(logits, settings, history)
        if settings.temperature < GREEDY_BELOW:
            token_id = int(kernels.best(adjusted, 1)[1])
        else:
            token_id = _draw(adjusted, settings, draw, kernels)
    return _report(logits, token_id, detail, kernels)


def penalize(logits: torch.Tensor, settings: SamplerSettings, history: History) -> torch.Tensor:
    """Return logits [V] after bias, repetition, frequency and presence; the argument is never changed.

    The repetition penalty r (Keskar et al. 2019, arXiv:1909.05858) acts once on each token of prompt and reply: l/r
    where the logit is positive, l*r where it is negative. Frequency and presence (OpenAI's API) count the reply alone.

    Raises:
        TinychatError: The bias leaves no token to choose.
    """
    if settings.logit_bias:
        logits = logits.clone()
        for token_id, amount in settings.logit_bias:
            if token_id < len(logits):
                logits[token_id] += amount
        if math.isinf(float(logits.max())):
            raise TinychatError("The logit bias bans every token the model has.", "Leave it at least one.")
    if settings.repetition_penalty != 1.0:
        r, seen = settings.repetition_penalty, history.seen
        own = logits[seen]
        logits = logits.index_put((seen,), torch.where(own < 0, own * r, own / r))
    if settings.frequency_penalty != 0.0 or settings.presence_penalty != 0.0:
        counts = history.in_reply
        logits = logits - settings.frequency_penalty * counts - settings.presence_penalty * (counts > 0)
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
    ranking = _Ranking(logits, kernels)
    kept = _kept(ranking, settings)
    values, ids = ranking.best(kept)
    return ids, torch.softmax(values.double() / settings.temperature, dim=0)


def _draw(logits: torch.Tensor, settings: SamplerSettings, draw: float, kernels: Kernels) -> int:
    """Return the token at `draw` (0 to 1) of the cumulated probabilities, best first."""
    ranking = _Ranking(logits, kernels)
    kept = _kept(ranking, settings)
    if kept < len(logits):
        values, ids = ranking.best(kept)
        weights = torch.softmax(values.double() / settings.temperature, dim=0)
        return _at(weights.cumsum(0), ids, draw)
    # Nothing is filtered: the mass of all tokens is known without ranking them, and the draw rarely falls far.
    mass = torch.logsumexp(logits / settings.temperature, dim=0).double()
    for count in (*_STEPS, len(logits)):
        values, ids = ranking.best(count)
        cumulated = torch.exp(values.double() / settings.temperature - mass).cumsum(0)
        if draw < cumulated[-1]:
            break
    return _at(cumulated, ids, draw)


def _at(cumulated: torch.Tensor, ids: torch.Tensor, draw: float) -> int:
    # Rounding can leave the last sum a hair under the draw.
    place = min(int(torch.searchsorted(cumulated, draw, right=True)), len(ids) - 1)
    return int(ids[place])


def _kept(ranking: _Ranking, settings: SamplerSettings) -> int:
    """Return how many of the best tokens the filters keep."""
    total = ranking.size
    kept = min(settings.top_k, total) if settings.top_k > 0 else total
    temperature = settings.temperature if settings.order == "transformers" else 1.0
    if settings.top_p < 1.0:
        kept = _top_p(ranking, kept, settings.top_p, temperature)
    if settings.min_p > 0.0:
        kept = min(kept, _min_p(ranking, settings.min_p, temperature))
    return kept


def _top_p(ranking: _Ranking, kept: int, p: float, temperature: float) -> int:
    """Return how many tokens have less than `p` of the first `kept` tokens' mass before them (Holtzman et al. 2019,
    arXiv:1904.09751); at least 1.
    """
    if kept < ranking.size:
        mass = torch.logsumexp(ranking.best(kept)[0].double() / temperature, dim=0)
    else:
        mass = torch.logsumexp(ranking.logits.double() / temperature, dim=0)
    for count in (*_STEPS, kept):
        values, _ = ranking.best(min(count, kept))
        shares = torch.exp(values.double() / temperature - mass)
        before = shares.cumsum(0) - shares
        inside = int((before < p).sum())
        if inside < len(values) or count >= kept:
            break
    return max(inside, 1)


def _min_p(ranking: _Ranking, p: float, temperature: float) -> int:
    """Return how many tokens have at least `p` of the best one's probability (Nguyen et al. 2024, arXiv:2407.01082)."""
    shares = torch.exp((ranking.logits - ranking.logits.max()) / temperature)
    return max(int((shares >= p).sum()), 1)


class _Ranking:
    """The best tokens, by logit and then by id, ranked as far as anyone asked."""

    def __init__(self, logits: torch.Tensor, kernels: Kernels) -> None:
        self.logits = logits
        self._kernels = kernels
        self.size = len(logits)
        self._values = logits[:0]
        self._ids = torch.empty(0, dtype=torch.long)

    def best(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits, fp32 [n], and ids, int64 [n], of the best n = min(count, V) tokens."""
        count = min(count, self.size)
        if count > len(self._ids):
            reach = next((step for step in _STEPS if step >= count and step < self.size), self.size)
            self._values, self._ids = self._kernels.best(self.logits, reach)
        return self._values[:count], self._ids[:count]


def _report(logits: torch.Tensor, token_id: int, detail: Detail, kernels: Kernels) -> Choice:
    if detail == "none":
        return Choice(token_id)
    logprob, rank, entropy = kernels.statistics(logits, token_id)
    alternatives: tuple[tuple[int, float], ...] = ()
    if detail == "full":
        values, ids = kernels.best(logits, min(ALTERNATIVES, len(logits)))
        mass = float(logits[token_id]) - logprob
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        alternatives = tuple((other, math.exp(value - mass)) for other, value in pairs)
    return Choice(token_id, logprob, rank, entropy, alternatives)
