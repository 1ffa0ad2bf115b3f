"""Replies that end while more had been guessed: as plain decoding ends them, and nothing after the end is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from driven import Driven, driven
from tiny import Tiny

from tinychat.engine import reply
from tinychat.engine.loading import Session
from tinychat.protocol import Limits, PromptRendered, SamplerSettings, TokenEmitted, TurnFinished

TEXT = "What is the capital of"
SAMPLERS = {
    "greedy": SamplerSettings(temperature=0.0, repetition_penalty=1.4),  # or the tiny models say one word for ever
    "seeded": SamplerSettings(temperature=1.2, top_k=0, top_p=1.0, seed=3),
}


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


class Oracle:
    """Guesses what was said the last time, and notes every guess."""

    NAME = "oracle"

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids
        self.guesses: list[Sequence[int]] = []

    def propose(self, ids: Sequence[int], count: int) -> Sequence[int]:
        self.guesses.append(self._ids[len(ids) : len(ids) + count])
        return self.guesses[-1]


def cached(engine: Driven) -> tuple[Any, ...]:
    """Return what the caches hold: ids, lengths, blocks."""

    def look(session: Session) -> tuple[Any, ...]:
        context = session.context
        return list(context.ids), {cache.length for cache in context.caches}, context.blocks

    return engine.engine.call(look)


def told(engine: Driven, turn_id: int) -> list[tuple[int, str]]:
    return [(event.token_id, event.text) for event in engine.of(TokenEmitted, turn_id=turn_id)]


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_an_end_id_inside_a_draft(engine: Driven, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, variant, sampler):
    """Catches a reply that goes on past its end, since the next tokens are at hand, and caches that keep them."""
    engine.load(tiny.safetensors(variant).path)
    whole = engine.reply(TEXT, 1, 40, sampler=sampler).ids
    prompt = engine.of(PromptRendered, turn_id=1)[0].ids
    # A pass draws one token of its own and then those that were guessed, 7 at most: the end is amid the guesses.
    end = next(n for n, token in enumerate(whole) if n % 8 in (2, 3, 4, 5) and n > 8 and token not in whole[:n])

    def ends_there(session: Session) -> None:
        session.opened = replace(session.opened, end_ids=frozenset({whole[end]}))

    engine.engine.call(ends_there)
    oracle = Oracle([*prompt, *whole])
    monkeypatch.setattr(reply, "proposer", lambda session: oracle)
    limits = Limits(max_tokens=40)
    found: list[tuple[TurnFinished, Any, Any, TurnFinished]] = []
    for turn_id, reach in ((2, 0), (4, 7)):
        engine.engine.call(lambda session: session.context.clear())
        settings = replace(sampler, speculate=reach)
        finished = engine.reply(TEXT, turn_id, sampler=settings, limits=limits)
        held = cached(engine)
        # And the next turn goes on from there.
        after = engine.reply(TEXT, turn_id + 1, 5)
        found.append((finished, held, told(engine, turn_id), after))
    plain, guessed = found
    assert any(whole[end] in guess[:-1] for guess in oracle.guesses), "the end was guessed, and more after it"
    assert guessed[0].accepted > 0
    assert plain[0].reason == guessed[0].reason == "eos"
    assert plain[0].ids == guessed[0].ids == whole[:end]
    assert plain[0].new_tokens == guessed[0].new_tokens == end + 1
    assert plain[0].text == guessed[0].text
    assert plain[1] == guessed[1]
    assert guessed[1][0] == [*prompt, *whole[:end]]
    assert guessed[1][1] == {len(prompt) + end}
    assert plain[2] == guessed[2]
    assert guessed[2][-1] == (whole[end], "")
    assert (plain[3].ids, plain[3].reused_tokens) == (guessed[3].ids, guessed[3].reused_tokens)
