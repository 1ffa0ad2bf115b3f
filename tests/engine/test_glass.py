"""The engine made of glass: pauses, steps, branches, and why each token was said."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from driven import DEADLINE, Driven, driven
from rulers import reference
from tiny import Tiny

from tinychat.engine import generation, records
from tinychat.engine.context import Context
from tinychat.protocol import (
    Cancel,
    DescribePrompt,
    EngineFailed,
    Explain,
    Explained,
    MemoryStats,
    Pace,
    Paused,
    PrefillProgress,
    PromptDescribed,
    PromptRendered,
    SamplerSettings,
    SetSampler,
    TokenEmitted,
    Tokenize,
    Tokenized,
    TurnFinished,
    Unload,
)

HOT = SamplerSettings(temperature=1.3, top_k=0, top_p=0.98, repetition_penalty=1.2, frequency_penalty=0.1, seed=7)


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 8)


def explain(engine: Driven, index: int, turn_id: int = 1, sampler: SamplerSettings | None = None) -> Explained:
    request_id = 1000 + len(engine.of(Explained))
    engine.send(Explain(request_id, turn_id, index, sampler))
    return engine.wait(Explained, request_id=request_id)


def going(explained: Explained) -> int:
    """Return the token that the draw chooses."""
    assert explained.problem == ""
    if explained.draw is None:
        return next(each.token_id for each in explained.candidates if each.interval)
    return next(
        each.token_id
        for each in explained.candidates
        if each.interval and each.interval[0] <= explained.draw < each.interval[1]
    )


# ---------------------------------------------------------------------------------------------------------------------
# Why a token was said


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
def test_every_token_is_explained(tiny: Tiny, engine, variant):
    """Between turns: of each token, the draw falls into the interval of the one that was said, at its own settings and
    penalties; the model's own probability is the one that was reported with it."""
    engine.load(tiny.safetensors(variant).path)
    engine.reply(sampler=HOT, count=12)
    for event in engine.of(TokenEmitted):
        told = explain(engine, event.index)
        assert (told.chosen, told.sampler, told.forced, told.recomputed) == (event.token_id, HOT, False, False)
        assert going(told) == event.token_id
        own = next(each for each in told.candidates if each.token_id == event.token_id)
        assert own.piece == event.piece
        assert own.removed_by == ""
        assert own.probabilities[0] == pytest.approx(torch.tensor(event.logprob).exp().item(), rel=1e-5)
        assert sum(each.probabilities[0] for each in told.candidates) + told.rest == pytest.approx(1, abs=1e-6)


def test_logits_are_transformers_own(tiny: Tiny, engine):
    """What is rebuilt of a kept state is what the reference computes at that place."""
    made = tiny.safetensors("llama")
    engine.load(made.path)
    engine.reply(sampler=HOT, count=8)
    ids = [*engine.of(PromptRendered)[0].ids, *engine.tokens()]
    theirs = reference(made.model, torch.tensor(ids)).logits
    first = len(ids) - 8
    for index in range(8):
        for each in explain(engine, index).candidates:
            assert each.logit == pytest.approx(float(theirs[first + index - 1, each.token_id]), rel=1e-4, abs=1e-4)


def test_other_settings(tiny: Tiny, engine):
    """The table for settings that were not in force; the token that was said is there even if it falls."""
    engine.load(tiny.safetensors("llama").path)
    engine.reply(sampler=HOT, count=6)
    greedy = SamplerSettings(temperature=0.0)
    for index, token_id in enumerate(engine.tokens()):
        told = explain(engine, index, sampler=greedy)
        assert (told.sampler, told.stages, told.draw, told.survivors) == (greedy, ("greedy",), None, 1)
        assert told.chosen == token_id
        own = next(each for each in told.candidates if each.token_id == token_id)
        assert (own.removed_by == "") == (token_id == going(told))


@pytest.mark.parametrize("speculate", [0, 3])
def test_recomputed_is_recorded(tiny: Tiny, engine, monkeypatch, speculate):
    """Where no state was kept, the model runs once more over the caches: the same numbers, bit for bit where a pass had
    one row, labelled; and the caches stay as they were."""
    engine.load(tiny.safetensors("llama").path)
    text, sampler = "What is what is what is", replace(HOT, temperature=0.3, speculate=speculate)
    engine.reply(text, sampler=sampler, count=20)
    kept = [explain(engine, index) for index in range(20)]
    assert bool(engine.of(TokenEmitted)[-1].drafted) == bool(speculate)

    def forget(session) -> list[int]:
        turn = session.records.get(1)
        turn.tokens = [replace(token, states=None) for token in turn.tokens]
        return list(session.context.ids)

    held = engine.engine.call(forget)
    again = [explain(engine, index) for index in range(20)]
    assert all(told.recomputed for told in again)
    for before, after in zip(kept, again, strict=True):
        if not speculate:
            assert replace(after, request_id=before.request_id, recomputed=False) == before
        logits = {each.token_id: each.logit for each in before.candidates}
        assert {each.token_id: each.logit for each in after.candidates} == pytest.approx(logits, rel=1e-4, abs=1e-4)
    assert engine.engine.call(lambda session: list(session.context.ids)) == held
    assert engine.reply(text, turn_id=2, sampler=sampler, count=20).ids == engine.of(TurnFinished)[0].ids


def test_the_token_after_the_last(tiny: Tiny, engine):
    """Of a reply that has ended, too: it would be drawn by the settings that were in force, nobody knows the draw."""
    engine.load(tiny.safetensors("llama").path)
    engine.reply(count=4)
    told = explain(engine, 4)
    assert (told.chosen, told.draw, told.recomputed) == (None, None, True)
    longer = engine.reply(turn_id=2, count=5)
    assert going(told) == longer.ids[4]


def test_questions_without_an_answer(tiny: Tiny, engine):
    """A sentence each: no model, no such turn, no such token, what is gone from records and caches."""
    assert "No model" in explain(engine, 0).problem
    engine.load(tiny.safetensors("llama").path)
    assert "gone" in explain(engine, 0).problem
    engine.reply(count=4)
    assert "has 4 tokens; there is none of number 6" in explain(engine, 5).problem
    assert "none of number" in explain(engine, -1).problem
    engine.send(DescribePrompt(5, 99))
    assert "gone" in engine.wait(PromptDescribed, request_id=5).problem
    engine.send(Unload())
    assert "No model" in explain(engine, 0).problem
    engine.load(tiny.safetensors("llama").path, 2)
    assert "gone" in explain(engine, 0).problem, "another load, other records"
    assert not engine.of(EngineFailed)


@pytest.mark.parametrize("variant", ["phi3-long-window", "phi3-long"])
def test_what_can_t_be_run_again(tiny: Tiny, engine, variant):
    """Where a window has moved on, or positions turn otherwise by now, the answer is a sentence; the newest tokens can
    still be told of, and so can all whose states are kept."""
    engine.load(tiny.safetensors(variant).path, context=200)
    engine.reply("Hi", count=130, raw=True)
    assert explain(engine, 0).problem == ""

    def forget(session) -> None:
        turn = session.records.get(1)
        turn.tokens = [replace(token, states=None) for token in turn.tokens]

    engine.engine.call(forget)
    assert any(words in explain(engine, 0).problem for words in ("window", "turns its positions differently"))
    told = explain(engine, 129)
    assert (told.problem, told.recomputed, going(told)) == ("", True, engine.tokens()[129])


def test_what_the_caches_no_longer_hold(tiny: Tiny, engine, monkeypatch):
    """One pass is as much as is run again for a question."""
    monkeypatch.setattr("tinychat.engine.context.STEP", 24)
    engine.load(tiny.safetensors("llama").path)
    engine.reply(count=10)

    def forget(session) -> int:
        session.context.clear()
        turn = session.records.get(1)
        turn.tokens = [replace(token, states=None) for token in turn.tokens]
        return len(turn.prompt.ids)

    length = engine.engine.call(forget)
    for index in range(10):
        told = explain(engine, index)
        if length + index > 24:
            assert "no longer hold" in told.problem
        else:
            assert going(told) == engine.tokens()[index]
    assert explain(engine, 0).problem == ""
    assert explain(engine, 9).problem


def test_bytes_are_told(tiny: Tiny, engine):
    """A state a token and the prompt, on the gauge; never more than there is room for; none after another load."""
    engine.load(tiny.safetensors("llama").path)
    engine.reply(count=10)
    engine.settle()
    width = engine.engine.call(lambda session: session.context.model.config.hidden_size)
    prompt = engine.engine.call(lambda session: records.prompt_bytes(session.records.get(1).prompt))
    assert engine.of(MemoryStats)[-1].kept == prompt + 10 * 4 * width
    engine.load(tiny.safetensors("llama").path, 2)
    engine.settle()
    assert engine.of(MemoryStats)[-1].kept == 0
    most = prompt + 5 * 4 * width
    engine.engine.call(lambda session: setattr(session, "records", records.Records(most)))
    engine.reply(turn_id=3, count=8)
    engine.settle()
    assert engine.of(MemoryStats)[-1].kept == most
    assert [explain(engine, index, 3).recomputed for index in range(8)] == [True] * 3 + [False] * 5


# ---------------------------------------------------------------------------------------------------------------------
# Pace


def test_pause_and_step(tiny: Tiny, engine):
    """Paused before the first token; a step is one token; then to the end; the ids are those of a reply in one go."""
    engine.load(tiny.safetensors("llama").path)
    whole = engine.reply(sampler=HOT, count=10).ids
    engine.say(turn_id=2, sampler=HOT, count=10, pace=Pace("pause"))
    assert engine.wait(Paused, turn_id=2).index == 0
    assert engine.tokens(2) == []
    for count in (1, 2, 3):
        engine.send(Pace("step"))
        assert engine.wait(Paused, count + 1, turn_id=2).index == count
        assert engine.tokens(2) == list(whole[:count])
    engine.send(Pace())
    finished = engine.wait(TurnFinished, turn_id=2)
    assert finished.ids == whole
    assert len(engine.of(Paused)) == 4


@pytest.mark.parametrize("speculate", [0, 3])
def test_the_token_to_come(tiny: Tiny, engine, speculate):
    """While paused the next draw is told before it is drawn; it is the one that then decides, and any settings tell
    which token it would choose."""
    engine.load(tiny.safetensors("llama").path)
    settings = replace(HOT, speculate=speculate)
    engine.say("What is what is what is", sampler=settings, count=12, pace=Pace("pause"))
    for index in range(6):
        assert engine.wait(Paused, index + 1).index == index
        told, again = explain(engine, index), explain(engine, index, sampler=replace(settings, temperature=0.2))
        assert (told.chosen, told.recomputed, told.draw) == (None, False, again.draw)
        if index == 3:
            engine.send(SetSampler(replace(settings, temperature=0.2)))
            assert explain(engine, index).sampler.temperature == 0.2
            told = again
        engine.send(Pace("step"))
        said = engine.wait(TokenEmitted, index + 1)
        assert said.token_id == going(told)
        after = explain(engine, index)
        assert (after.draw, after.chosen) == (told.draw, said.token_id)


def test_settings_while_paused(tiny: Tiny, engine):
    """They act on the very next token."""
    engine.load(tiny.safetensors("llama").path)
    engine.say(count=8, pace=Pace("pause"))
    engine.wait(Paused)
    engine.send(SetSampler(SamplerSettings(temperature=0.0, logit_bias=((77, 1e6),))))
    engine.send(Pace("step"))
    engine.wait(Paused, 2)
    assert engine.tokens() == [77]


def test_paused_it_answers_and_stops(tiny: Tiny, engine):
    """Everything that may come at any time is answered at once, and a cancel ends it; catches a thread that sleeps."""
    engine.load(tiny.safetensors("llama").path)
    engine.say(count=8, pace=Pace("pause"))
    engine.wait(Paused)
    began = time.monotonic()
    engine.send(Tokenize(1, "Hi"))
    assert engine.wait(Tokenized, request_id=1).pieces
    engine.send(DescribePrompt(2, 1))
    described = engine.wait(PromptDescribed, request_id=2)
    assert tuple(piece.token_id for piece in described.pieces) == engine.of(PromptRendered)[0].ids
    engine.send(Cancel(turn_id=1))
    assert engine.wait(TurnFinished).reason == "cancelled"
    assert time.monotonic() - began < DEADLINE / 4
    engine.say(turn_id=2, count=8, pace=Pace("pause"))
    engine.wait(Paused, turn_id=2)
    # The fixture ends the engine while it is paused.


def test_a_rate(tiny: Tiny, engine):
    """So many tokens a second at most, and a cancel comes through in between."""
    engine.load(tiny.safetensors("llama").path)
    began = time.monotonic()
    engine.say(count=5, pace=Pace(rate=20))
    engine.wait(TurnFinished)
    assert time.monotonic() - began > 0.2
    assert not engine.of(Paused)
    engine.say(turn_id=2, count=5, pace=Pace(rate=0.01))
    engine.wait(TokenEmitted, turn_id=2)
    engine.send(Cancel(turn_id=2))
    assert engine.wait(TurnFinished, turn_id=2).reason == "cancelled"


def test_sentences(tiny: Tiny, engine):
    """It pauses where a full stop stands before a space, before that space is said, and goes on from there; the ids are
    those of a reply in one go."""
    engine.load(tiny.safetensors("llama").path)
    wanted = {".": 105.0, " ": 104.0, "a": 100.0}
    ids = engine.engine.call(lambda session: [session.opened.tokenizer.encode(text, first=False) for text in wanted])
    bias = tuple((token_id, more) for (token_id,), more in zip(ids, wanted.values(), strict=True))
    only = SamplerSettings(temperature=4.0, top_k=0, top_p=1.0, seed=3, logit_bias=bias)
    whole = engine.reply(sampler=only, count=40)
    stops = [n for n in range(1, 40) if whole.text[n - 1] == "." and whole.text[n] == " "]
    assert len(stops) > 1
    engine.say(turn_id=2, sampler=only, count=40, pace=Pace("sentence"))
    for count, place in enumerate(stops, start=1):
        assert engine.wait(Paused, count).index == place
        assert len(engine.tokens(2)) == place
        engine.send(Pace("sentence"))
    assert engine.wait(TurnFinished, turn_id=2).ids == whole.ids


# ---------------------------------------------------------------------------------------------------------------------
# Branches


@pytest.mark.parametrize("detail", ["none", "basic", "full"])
@pytest.mark.parametrize("variant", ["llama", "gpt2"])
@pytest.mark.parametrize("at", [0, 5, 11])
def test_a_branch_is_a_cold_run(tiny: Tiny, engine, variant, at, detail):
    """The ids of a branch are those that an engine which knows nothing makes of the same beginning with the same seed;
    the prompt and the common tokens are found in the caches, and reported as they were the first time."""
    path = tiny.safetensors(variant).path
    engine.load(path)
    first = engine.reply(sampler=HOT, count=12, detail=detail)
    forced = (*first.ids[:at], (first.ids[at] + 1) % 300 + 3)
    branch = engine.reply(turn_id=2, sampler=HOT, count=16, detail=detail, forced_ids=forced, branch_of=1)
    prompt = len(engine.of(PromptRendered)[0].ids)
    assert branch.reused_tokens == prompt + at
    assert branch.forced == at + 1
    total = prompt + at + 1
    assert engine.of(PrefillProgress, turn_id=2)[-1] == PrefillProgress(2, total, total, prompt + at)
    with driven() as cold:
        cold.load(path)
        alone = cold.reply(sampler=HOT, count=16, detail=detail, forced_ids=forced)
        assert (alone.reused_tokens, alone.forced) == (0, at + 1)
        assert branch.ids == alone.ids
        assert branch.ids[: at + 1] == forced
        told, expected = engine.of(TokenEmitted, turn_id=2), cold.of(TokenEmitted)
    for ours, theirs in zip(told, expected, strict=True):
        if detail == "none":
            assert (ours.logprob, ours.rank, ours.entropy) == (None, None, None)
        else:
            assert (ours.logprob, ours.entropy) == pytest.approx((theirs.logprob, theirs.entropy), rel=1e-3, abs=1e-4)
        assert len(ours.alternatives) == (8 if detail == "full" else 0)


def test_what_a_branch_shares_is_kept_once(tiny: Tiny, engine):
    """The common tokens cost nothing and are told as they were drawn; the one that was chosen by hand is dictated, and
    so is the table that it was chosen from."""
    engine.load(tiny.safetensors("llama").path)
    first = engine.reply(sampler=HOT, count=10)
    engine.settle()
    before = engine.of(MemoryStats)[-1].kept
    prompt = engine.engine.call(lambda session: records.prompt_bytes(session.records.get(1).prompt))
    forced = (*first.ids[:6], (first.ids[6] + 1) % 300 + 3)
    engine.reply(turn_id=2, sampler=HOT, count=9, forced_ids=forced, branch_of=1)
    engine.settle()
    assert engine.of(MemoryStats)[-1].kept == before + prompt + 2 * (before - prompt) // 10
    for index in range(6):
        old, new = explain(engine, index), explain(engine, index, 2)
        assert replace(new, request_id=0, turn_id=0) == replace(old, request_id=0, turn_id=0)
    chosen = explain(engine, 6, 2)
    assert (chosen.forced, chosen.chosen, chosen.recomputed) == (True, forced[6], False)
    assert [each.logit for each in chosen.candidates if each.token_id != forced[6]][:5] == [
        each.logit for each in explain(engine, 6).candidates if each.token_id != forced[6]
    ][:5]
    assert going(explain(engine, 7, 2)) == engine.tokens(2)[7]


def test_a_dictated_start_is_computed_in_chunks(tiny: Tiny, engine, monkeypatch):
    """Not a step a token: of 40 dictated ones, 5 passes of 8."""
    engine.load(tiny.safetensors("llama").path)
    engine.reply("Hi", count=1)
    passes: list[int] = []
    real = Context.forward

    def counted(self, ids, *more, **options):
        passes.append(len(ids))
        return real(self, ids, *more, **options)

    monkeypatch.setattr(Context, "forward", counted)
    ids = tuple(5 + n for n in range(40))
    finished = engine.reply("Hi", turn_id=2, forced_ids=ids, count=42)
    assert finished.ids[:40] == ids
    assert sum(passes) == 40 + 2 - 1 + 1
    assert len(passes) <= 8
    assert all(event.rank is not None for event in engine.of(TokenEmitted, turn_id=2))
    assert finished.decode_rate > 0


def test_a_pause_comes_after_what_is_dictated(tiny: Tiny, engine):
    """A branch that begins paused says what it repeats, then waits."""
    engine.load(tiny.safetensors("llama").path)
    engine.say(forced_ids=(70, 71, 72), count=8, pace=Pace("pause"))
    assert engine.wait(Paused).index == 3
    assert engine.tokens() == [70, 71, 72]
    engine.send(Cancel(turn_id=1))
    assert engine.wait(TurnFinished).ids == (70, 71, 72)


def test_a_branch_of_a_turn_whose_states_are_gone(tiny: Tiny, engine):
    """Its common tokens are computed again, and reported."""
    engine.load(tiny.safetensors("llama").path)
    first = engine.reply(sampler=HOT, count=8)
    engine.engine.call(lambda session: session.records.begin(1, session.records.get(1).prompt))
    forced = (*first.ids[:4], 9)
    branch = engine.reply(turn_id=2, sampler=HOT, count=6, forced_ids=forced, branch_of=1)
    assert branch.reused_tokens == len(engine.of(PromptRendered)[0].ids) - 1
    old, new = engine.of(TokenEmitted, turn_id=1)[:4], engine.of(TokenEmitted, turn_id=2)[:4]
    for before, after in zip(old, new, strict=True):
        assert after.logprob == pytest.approx(before.logprob, rel=1e-3, abs=1e-4)
    assert explain(engine, 2, 2).forced


# ---------------------------------------------------------------------------------------------------------------------
# The prompt


def test_the_prompt_is_described(tiny: Tiny, engine):
    """Its pieces join to its bytes, control tokens are marked, spans and BOS are where they are."""
    engine.load(tiny.gguf("llama").path)
    engine.reply(count=1)
    rendered = engine.of(PromptRendered)[0]
    engine.send(DescribePrompt(4, 1))
    told = engine.wait(PromptDescribed, request_id=4)
    tokenizer = engine.engine.call(lambda session: session.opened.tokenizer)
    assert [piece.token_id for piece in told.pieces] == list(rendered.ids)
    assert b"".join(piece.data for piece in told.pieces) == tokenizer.decode_bytes(rendered.ids)
    assert [piece.special for piece in told.pieces] == [i in tokenizer.special for i in rendered.ids]
    assert [piece.start for piece in told.pieces][1:] == [piece.start + len(piece.data) for piece in told.pieces][:-1]
    assert told.spans == rendered.spans
    assert told.bos == ((0,) if rendered.ids[0] == tokenizer.bos_id else ())
