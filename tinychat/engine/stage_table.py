"""Why a token was said, as a table: the candidates, and what each stage of the sampler's chain made of them.

The chain is run again, stage after stage, by the functions that choose; nothing here knows what a stage does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from tinychat.engine.chain import (
    ADJUSTMENTS,
    FILTERS,
    GREEDY_BELOW,
    History,
    Ranking,
    cumulated,
    filter_temperature,
)
from tinychat.kernels import Kernels
from tinychat.protocol import SamplerSettings

BEST: Final = 40
"""Candidates that are there by the model's own probability."""
ROOM: Final = 64
"""Candidates in all, where more could be drawn."""


@dataclass(frozen=True, slots=True)
class Row:
    """A candidate; see `protocol.Candidate`."""

    token_id: int
    logit: float
    probabilities: tuple[float, ...]
    removed_by: str
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class StageTable:
    """What the chain does to one row of logits; see `protocol.Explained`."""

    stages: tuple[str, ...]
    rows: tuple[Row, ...]
    survivors: int
    rest: float


@dataclass(frozen=True, slots=True)
class _Stage:
    """Where the chain stands after a stage."""

    name: str
    ranking: Ranking
    kept: int
    temperature: float

    def probabilities(self, ids: torch.Tensor, places: torch.Tensor) -> list[float]:
        """Return the softmax over the tokens that are left, of candidates that stand at `places` of the ranking."""
        values = self.ranking.best(self.kept)[0] if self.kept < self.ranking.size else self.ranking.logits
        mass = torch.logsumexp(values.double() / self.temperature, dim=0)
        shares = torch.exp(self.ranking.logits[ids].double() / self.temperature - mass)
        found: list[float] = torch.where(places < self.kept, shares, 0.0).tolist()
        return found


def stage_table(
    logits: torch.Tensor,
    settings: SamplerSettings,
    history: History,
    kernels: Kernels,
    *,
    also: Sequence[int] = (),
    best: int = BEST,
    room: int = ROOM,
) -> StageTable:
    """Run the chain and look after each stage.

    Args:
        logits: The model's own, fp32 [V].
        settings: The chain's numbers.
        history: What the penalties count.
        kernels: Rank.
        also: Candidates that have to be there.
        best: How many are there by the model's own probability.
        room: How many there may be with the others that could be drawn.

    Raises:
        TinychatError: The bias leaves no token to choose.
    """
    own = _Stage("", Ranking(logits, kernels), len(logits), 1.0)
    stages = _run(own, settings, history, kernels)
    last = stages[-1] if stages else own
    banned = int((last.ranking.logits == -torch.inf).sum())
    survivors = min(last.kept, len(logits) - banned)
    chosen = dict.fromkeys([*own.ranking.best(best)[1].tolist(), *also])
    for token_id in last.ranking.best(min(survivors, room))[1].tolist():
        if len(chosen) < room:
            chosen.setdefault(token_id)
    ids = torch.tensor(list(chosen), dtype=torch.long)
    raw = own.probabilities(ids, torch.zeros_like(ids))
    places = _places(last.ranking, ids, max([stage.kept for stage in stages if stage.kept < len(logits)], default=0))
    columns = [raw, *(stage.probabilities(ids, places) for stage in stages)]
    intervals = _intervals(last, survivors)
    rows = [
        Row(
            token_id,
            float(logits[token_id]),
            tuple(column[n] for column in columns),
            _remover(stages, token_id, int(places[n])),
            intervals.get(token_id),
        )
        for n, token_id in enumerate(ids.tolist())
    ]
    rows.sort(key=lambda row: (-row.logit, row.token_id))
    return StageTable(tuple(stage.name for stage in stages), tuple(rows), survivors, max(0.0, 1.0 - sum(raw)))


def _run(own: _Stage, settings: SamplerSettings, history: History, kernels: Kernels) -> list[_Stage]:
    """Return the stages that are on, in order."""
    stages: list[_Stage] = []
    ranking, kept = own.ranking, own.kept
    for adjustment in ADJUSTMENTS:
        if adjustment.acts(settings):
            ranking = Ranking(adjustment.apply(ranking.logits, settings, history), kernels)
            stages.append(_Stage(adjustment.name, ranking, kept, 1.0))
    if settings.temperature < GREEDY_BELOW:
        return [*stages, _Stage("greedy", ranking, 1, 1.0)]
    temperature = filter_temperature(settings)
    if temperature != 1.0:
        stages.append(_Stage("temperature", ranking, kept, temperature))
    for stage in FILTERS:
        if stage.acts(settings):
            kept = stage.keep(ranking, kept, settings, temperature)
            stages.append(_Stage(stage.name, ranking, kept, temperature))
    if temperature != settings.temperature:
        stages.append(_Stage("temperature", ranking, kept, settings.temperature))
    return stages


def _places(ranking: Ranking, ids: torch.Tensor, reach: int) -> torch.Tensor:
    """Return where tokens stand in a ranking, int64 [n], of those that are among its first `reach`; else `reach`."""
    place = {token_id: n for n, token_id in enumerate(ranking.best(reach)[1].tolist())}
    return torch.tensor([place.get(token_id, reach) for token_id in ids.tolist()], dtype=torch.long)


def _remover(stages: Sequence[_Stage], token_id: int, place: int) -> str:
    """Return the stage that a candidate at `place` of the ranking did not survive, "" where there is none."""
    for stage in stages:
        if place >= stage.kept or float(stage.ranking.logits[token_id]) == -torch.inf:
            return stage.name
    return ""


def _intervals(last: _Stage, survivors: int) -> dict[int, tuple[float, float]]:
    """Return the draws that choose each token, by its id: they follow each other from 0 to 1."""
    ids, ends = cumulated(last.ranking, last.kept, last.temperature, survivors)
    found: dict[int, tuple[float, float]] = {}
    start = 0.0
    for place, (token_id, end) in enumerate(zip(ids.tolist(), ends.tolist(), strict=True)):
        if place == survivors:  # the banned stand behind
            break
        stop = 1.0 if place == survivors - 1 else min(end, 1.0)
        found[token_id] = start, stop
        start = stop
    return found
