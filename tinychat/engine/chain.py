"""The stages between the model's logits and the draw, each a named pure function: what chooses and what explains share.

Adjustments give other logits. Filters keep the best n tokens for some n, so that nothing ever sorts a vocabulary: they
rank as many of the best as they need (a full sort of 49,152 logits costs more than all else of a token's sampling).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from tinychat.errors import TinychatError
from tinychat.kernels import Kernels
from tinychat.protocol import SamplerSettings

GREEDY_BELOW: Final = 1e-5
"""Temperatures under this are 0: the division would overflow before it mattered."""
_STEPS: Final = (64, 256, 1024)
"""How many of the best tokens are ranked at first, and next; then all."""


class History:
    """Which tokens the penalties count: of the prompt and the reply, how often each occurs."""

    def __init__(self, prompt: Sequence[int], vocabulary: int, reply: Sequence[int] = ()) -> None:
        """Begin after `prompt` and as much of a reply as there is; ids are below `vocabulary`."""
        self.in_reply = torch.bincount(torch.tensor(reply, dtype=torch.long), minlength=vocabulary).float()
        """fp32 [V]: how often the reply holds each token."""
        self._seen = {*prompt, *reply}
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


class Ranking:
    """The best tokens, by logit and then by id, ranked as far as anyone asked."""

    def __init__(self, logits: torch.Tensor, kernels: Kernels) -> None:
        """Take logits, fp32 [V]; nothing is ranked yet."""
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


# ---------------------------------------------------------------------------------------------------------------------
# Adjustments


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A stage that gives other logits."""

    name: str
    acts: Callable[[SamplerSettings], bool]
    """Whether it is on."""
    apply: Callable[[torch.Tensor, SamplerSettings, History], torch.Tensor]
    """(fp32 [V], the settings, what penalties count) -> fp32 [V]; the argument is never changed."""


def _bias(logits: torch.Tensor, settings: SamplerSettings, history: History) -> torch.Tensor:
    """Add to the logits of some tokens; minus infinity bans one.

    Raises:
        TinychatError: No token is left to choose.
    """
    del history
    logits = logits.clone()
    for token_id, amount in settings.logit_bias:
        if token_id < len(logits):
            logits[token_id] += amount
    if math.isinf(float(logits.max())):
        raise TinychatError("The logit bias bans every token the model has.", "Leave it at least one.")
    return logits


def _repetition(logits: torch.Tensor, settings: SamplerSettings, history: History) -> torch.Tensor:
    """Act once on each token of prompt and reply: l/r where the logit is positive, l*r where it is negative (Keskar et
    al. 2019, arXiv:1909.05858).
    """
    r, seen = settings.repetition_penalty, history.seen
    own = logits[seen]
    return logits.index_put((seen,), torch.where(own < 0, own * r, own / r))


def _frequency_presence(logits: torch.Tensor, settings: SamplerSettings, history: History) -> torch.Tensor:
    """Take off for each time that the reply holds a token, and for its holding it at all (OpenAI's API)."""
    counts = history.in_reply
    return logits - settings.frequency_penalty * counts - settings.presence_penalty * (counts > 0)


ADJUSTMENTS: Final = (
    Adjustment("bias", lambda settings: bool(settings.logit_bias), _bias),
    Adjustment("repetition", lambda settings: settings.repetition_penalty != 1.0, _repetition),
    Adjustment(
        "frequency and presence",
        lambda settings: settings.frequency_penalty != 0.0 or settings.presence_penalty != 0.0,
        _frequency_presence,
    ),
)

# ---------------------------------------------------------------------------------------------------------------------
# Filters


@dataclass(frozen=True, slots=True)
class Filter:
    """A stage that keeps the best tokens."""

    name: str
    acts: Callable[[SamplerSettings], bool]
    """Whether it is on."""
    keep: Callable[[Ranking, int, SamplerSettings, float], int]
    """(ranking, tokens kept before it, the settings, temperature) -> how many of the best it keeps: 1 or more."""


def _top_k(ranking: Ranking, kept: int, settings: SamplerSettings, temperature: float) -> int:
    """Keep k."""
    del ranking, temperature
    return min(kept, settings.top_k)


def _top_p(ranking: Ranking, kept: int, settings: SamplerSettings, temperature: float) -> int:
    """Keep the tokens that have less than p of the kept ones' mass before them (Holtzman et al. 2019,
    arXiv:1904.09751).
    """
    values = ranking.best(kept)[0] if kept < ranking.size else ranking.logits
    mass = torch.logsumexp(values.double() / temperature, dim=0)
    for count in (*_STEPS, kept):
        values, _ = ranking.best(min(count, kept))
        shares = torch.exp(values.double() / temperature - mass)
        before = shares.cumsum(0) - shares
        inside = int((before < settings.top_p).sum())
        if inside < len(values) or count >= kept:
            break
    return max(inside, 1)


def _min_p(ranking: Ranking, kept: int, settings: SamplerSettings, temperature: float) -> int:
    """Keep the tokens that have at least p of the best one's probability (Nguyen et al. 2024, arXiv:2407.01082)."""
    shares = torch.exp((ranking.logits - ranking.logits.max()) / temperature)
    return min(kept, max(int((shares >= settings.min_p).sum()), 1))


FILTERS: Final = (
    Filter("top-k", lambda settings: settings.top_k > 0, _top_k),
    Filter("top-p", lambda settings: settings.top_p < 1.0, _top_p),
    Filter("min-p", lambda settings: settings.min_p > 0.0, _min_p),
)


def filter_temperature(settings: SamplerSettings) -> float:
    """Return what the filters divide logits by: in llama.cpp's order the temperature comes after them."""
    return settings.temperature if settings.order == "transformers" else 1.0


# ---------------------------------------------------------------------------------------------------------------------
# The draw


def cumulated(ranking: Ranking, kept: int, temperature: float, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the draws of tokens end: each is chosen from the end of the one before it up to its own.

    Args:
        ranking: Of the adjusted logits.
        kept: How many of the best can be drawn.
        temperature: Above 0.
        count: How many of these to look at; all, where a filter left fewer than the vocabulary.

    Returns:
        ids, int64 [n], best first, and ends, fp64 [n].
    """
    if kept < ranking.size:
        values, ids = ranking.best(kept)
        return ids, torch.softmax(values.double() / temperature, dim=0).cumsum(0)
    # Nothing is filtered: the mass of all tokens is known without ranking them.
    # Its logarithm in fp32 would move every end by 1e-6 of itself, as much as separates the least probable tokens.
    top = ranking.logits.max()
    mass = torch.exp((ranking.logits - top) / temperature).sum(dtype=torch.float64)
    values, ids = ranking.best(count)
    return ids, (torch.exp((values - top).double() / temperature) / mass).cumsum(0)


def drawn(ranking: Ranking, kept: int, temperature: float, draw: float) -> int:
    """Return the token that `draw`, from 0 to 1, chooses."""
    for count in (*_STEPS, kept):  # a draw rarely falls far
        ids, ends = cumulated(ranking, kept, temperature, min(count, kept))
        if len(ids) == kept or draw < ends[-1]:
            break
    place = int(torch.searchsorted(ends, draw, right=True))
    if place == len(ids):  # rounding left the last end a hair under the draw; banned tokens stand there, too
        place = int(torch.searchsorted(ends, ends[-1]))
    return int(ids[place])
