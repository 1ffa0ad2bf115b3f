"""Two engines on one thread: each says what it would say alone, in turn with the other, and what happens to one is
nothing to the other."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from driven import DEADLINE, Driven, Gate, driven, load_command
from hypothesis import given
from hypothesis import strategies as st
from tiny import Tiny

from tinychat.engine import generation
from tinychat.engine.beside import KEPT_ROWS, divergence
from tinychat.protocol import (
    Cancel,
    Divergence,
    EngineFailed,
    Event,
    Generate,
    Limits,
    Message,
    ModelReady,
    Notice,
    Pace,
    Paused,
    PromptRendered,
    SamplerSettings,
    Shutdown,
    TokenEmitted,
    Tokenize,
    Tokenized,
    TurnFinished,
    Unload,
)

LONG = "The capital of France is Paris. " * 6
WARM = SamplerSettings(temperature=1.0, seed=7)


class Two:
    """Two engines on one thread, A and B, and their events in the order in which they were told."""

    def __init__(self) -> None:
        self.a = Driven()
        self.b = Driven(beside=self.a)
        self.order: list[tuple[str, Event]] = []

    def say(self, text: str = "What is", turn_id: int = 1, **more: Any) -> None:
        self.a.say(text, turn_id, **more)
        self.b.say(text, turn_id, **more)

    def finish(self, turn_id: int = 1) -> tuple[TurnFinished, TurnFinished]:
        return self.a.wait(TurnFinished, turn_id=turn_id), self.b.wait(TurnFinished, turn_id=turn_id)

    def ask(self, text: str = "What is", turn_id: int = 1, **more: Any) -> tuple[TurnFinished, TurnFinished]:
        self.say(text, turn_id, **more)
        finished = self.finish(turn_id)
        self.a.settle()
        return finished


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    try:
        yield made
    finally:
        assert made.a.engine.close(DEADLINE)
        assert not made.b.alive()


@pytest.fixture
def gate(monkeypatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 8)


def alone(path, text: str = "What is", count: int = 24, **more: Any) -> tuple[TurnFinished, ModelReady]:
    """What a model says that shares its thread with nobody."""
    load = {name: more.pop(name) for name in ("dtype", "cache_dtype") if name in more}
    with driven() as engine:
        ready = engine.load(path, **load)
        return engine.reply(text, count=count, **more), ready


# ---------------------------------------------------------------------------------------------------------------------
# Each is as it is alone


@pytest.mark.parametrize("sampler", [replace(WARM, temperature=0.0), WARM, replace(WARM, speculate=3)])
def test_two_forms_of_one_model(tiny: Tiny, two, sampler):
    """The ids of each are those of a run alone with the same seed: catches states, draws or caches that mix."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path, dtype="int8")
    finished = two.ask(sampler=sampler, count=24)
    assert finished[0].ids == alone(path, sampler=sampler)[0].ids
    assert finished[1].ids == alone(path, dtype="int8", sampler=sampler)[0].ids
    assert finished[0].seed == finished[1].seed == 7


def test_two_models(tiny: Tiny, two, gpt2_folder):
    """Of other families, vocabularies and templates; and in the next turn each goes on from what it said itself."""
    paths = tiny.safetensors("llama").path, gpt2_folder
    ready = two.a.load(paths[0]), two.b.load(paths[1])
    finished = two.ask(LONG, sampler=WARM, count=24)
    assert [each.ids for each in finished] == [alone(path, LONG, sampler=WARM)[0].ids for path in paths]
    for n, engine in enumerate((two.a, two.b)):
        reply = Message("assistant", finished[n].text, finished[n].ids, ready[n].info.vocabulary)
        engine.say(turn_id=2, messages=(Message("user", LONG), reply, Message("user", "And?")), sampler=WARM, count=9)
    two.finish(2)
    for n, engine in enumerate((two.a, two.b)):
        prompt, own = engine.wait(PromptRendered, turn_id=2).ids, finished[n].ids
        assert any(prompt[at : at + len(own)] == own for at in range(len(prompt)))


def test_one_seed_and_other_settings(tiny: Tiny, two):
    """The same model, greedy and not: what each draws is as alone."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path)
    two.a.say(sampler=replace(WARM, temperature=0.0), count=24)
    two.b.say(sampler=WARM, count=24)
    finished = two.finish()
    assert finished[0].ids == alone(path, sampler=replace(WARM, temperature=0.0))[0].ids
    assert finished[1].ids == alone(path, sampler=WARM)[0].ids


# ---------------------------------------------------------------------------------------------------------------------
# In turn


def test_token_by_token(tiny: Tiny, two, monkeypatch):
    """Neither is ever more than one token ahead, though one has a longer prompt and is asked first."""
    two.a.load(tiny.safetensors("llama").path)
    two.b.load(tiny.safetensors("gpt2").path)
    order: list[str] = []
    for name, engine in (("a", two.a), ("b", two.b)):
        worker = engine.engine._worker
        real = worker._tell

        def tell(event: Event, name: str = name, real: Any = real) -> None:
            if isinstance(event, TokenEmitted):
                order.append(name)
            real(event)

        monkeypatch.setattr(worker, "_tell", tell)
    two.a.say("Hi", count=12)
    two.b.say(LONG, count=12)
    two.finish()
    ahead = [order[: n + 1].count("a") - order[: n + 1].count("b") for n in range(len(order))]
    # The first could have begun before the second was asked.
    assert max(ahead[KEPT_ROWS:]) <= max(1, ahead[KEPT_ROWS - 1])
    assert order.count("a") == order.count("b") == 12
    assert set(map(abs, ahead[-12:])) == {0, 1}


def test_the_clock_of_one_stands_still_while_the_other_is_at_it(tiny: Tiny, two, monkeypatch):
    """Catches a speed that is that of the two together: each is told what it takes itself."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path)
    slow = two.b.engine.call(lambda session: session.context)
    real = type(slow).forward
    pause = threading.Event()

    def forward(context: Any, *arguments: Any, **more: Any) -> Any:
        if context is slow:
            pause.wait(0.05)  # what a larger model would take
        return real(context, *arguments, **more)

    monkeypatch.setattr(type(slow), "forward", forward)
    finished = two.ask(count=12)
    assert finished[1].decode_seconds > 11 * 0.05
    assert finished[0].decode_seconds < finished[1].decode_seconds / 2
    assert sum(token.seconds for token in two.a.of(TokenEmitted)) < 12 * 0.05


def test_a_pause_holds_both(tiny: Tiny, two):
    """Asked of each, as a screen does; a step makes one token of each; and they say what they would have said."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path, dtype="int8")
    two.say(count=6, pace=Pace("pause"))
    for engine in (two.a, two.b):
        engine.wait(Paused, index=0)
    for index in range(3):
        for engine in (two.a, two.b):
            engine.send(Pace("step"))
        for engine in (two.a, two.b):
            engine.wait(Paused, index=index + 1)
            assert len(engine.tokens()) == index + 1
    for engine in (two.a, two.b):
        engine.send(Pace("play"))
    assert two.finish()[0].ids == alone(path, count=6)[0].ids


def test_a_pause_of_one_holds_the_other(tiny: Tiny, two):
    """They keep in step: at most the token that the other has, too; and it costs no processor time meanwhile."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path)
    two.a.say(count=6, pace=Pace("pause"))
    two.a.wait(Paused, index=0)
    two.b.say(count=6)
    two.b.wait(TokenEmitted)
    two.b.send(Tokenize(1, "x"))
    two.b.wait(Tokenized)
    assert len(two.b.tokens()) == 1
    assert two.a.engine._on._patience() is None
    two.a.send(Pace("play"))
    assert [each.new_tokens for each in two.finish()] == [6, 6]


def test_questions_are_answered_by_the_one_that_is_asked(tiny: Tiny, two, gpt2_folder):
    """Each has its own vocabulary and outbox."""
    two.a.load(tiny.safetensors("llama").path)
    two.b.load(gpt2_folder)
    two.say(LONG, count=9)
    two.a.send(Tokenize(1, "capital"))
    two.b.send(Tokenize(2, "capital"))
    pieces = two.a.wait(Tokenized).pieces, two.b.wait(Tokenized).pieces
    assert len(two.a.of(Tokenized)) == len(two.b.of(Tokenized)) == 1
    assert pieces[0] != pieces[1]
    two.finish()


# ---------------------------------------------------------------------------------------------------------------------
# How far apart


def plain_divergence(two: Two, index: int) -> float:
    """KL(A || B) at a token, by its definition, from what each model makes of the same ids in one pass."""

    def logits(engine: Driven) -> torch.Tensor:
        def work(session: Any) -> torch.Tensor:
            with torch.inference_mode():
                context, record = session.context, session.records.get(1)
                ids = [*record.prompt.ids, *record.ids[:index]]
                fresh = type(context)(context.model, 128, context.caches[0].dtype)
                return fresh.forward(ids).double().clone()

        return engine.engine.call(work)

    p, q = (torch.softmax(logits(engine), 0) for engine in (two.a, two.b))
    return float((p * (p / q).log()).sum())


@pytest.mark.parametrize("speculate", [0, 3])
def test_divergence_of_two_forms(tiny: Tiny, two, speculate):
    """For each token up to the first that differs, that one included, and for none after it; as by its definition."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path, dtype="int8")
    two.ask(sampler=replace(WARM, speculate=speculate), count=40)
    a, b = two.a.tokens(), two.b.tokens()
    first = next(n for n in range(40) if a[n] != b[n])
    told = two.a.of(Divergence)
    assert [event.index for event in told] == list(range(first + 1))
    assert {event.turn_id for event in told} == {1}
    assert not two.b.of(Divergence)
    for event in (told[0], told[-1]):
        assert event.nats > 0
        assert event.nats == pytest.approx(plain_divergence(two, event.index), rel=0.05)


def test_divergence_in_one_direction(tiny: Tiny, two):
    """It is KL(A || B), not KL(B || A): catches arguments the wrong way round."""
    path = tiny.safetensors("llama").path
    two.a.load(path, dtype="int4")
    two.b.load(path)
    two.ask(count=1)
    event = two.a.wait(Divergence)
    forwards = plain_divergence(two, 0)
    two.a, two.b = two.b, two.a
    backwards = plain_divergence(two, 0)
    two.a, two.b = two.b, two.a
    assert event.nats == pytest.approx(forwards, rel=0.02)
    assert event.nats != pytest.approx(backwards, rel=0.02)


def test_no_divergence_between_the_same(tiny: Tiny, two):
    """The same weights and another temperature: 0 to the last bit, as long as they say the same."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path)
    two.a.say(sampler=replace(WARM, temperature=0.0), count=24)
    two.b.say(sampler=WARM, count=24)
    two.finish()
    two.a.settle()
    assert two.a.of(Divergence)
    assert {event.nats for event in two.a.of(Divergence)} == {0.0}


@pytest.mark.parametrize("why", ["vocabulary", "prompt"])
def test_no_divergence_where_they_read_something_else(tiny: Tiny, two, gpt2_folder, why):
    """Another vocabulary, or another prompt: there is nothing to compare token by token."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(gpt2_folder if why == "vocabulary" else path)
    two.a.say("What is", count=5)
    two.b.say("What was" if why == "prompt" else "What is", count=5)
    two.finish()
    two.a.settle()
    assert not two.a.of(Divergence)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=40), st.randoms())
def test_laws_of_divergence(values, random):
    """Never negative, 0 for the same distribution, unchanged by a constant added, whatever rows only one has."""
    a = torch.tensor(values)
    b = torch.tensor(random.sample(values, len(values)))
    assert divergence(a, b) >= 0
    assert divergence(a, a + 3) == pytest.approx(0, abs=1e-5)
    assert divergence(a, torch.cat([b, torch.tensor([50.0])])) == divergence(a, b)
    p, q = torch.softmax(a.double(), 0), torch.softmax(b.double(), 0)
    assert divergence(a, b) == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# What happens to one


def test_one_ends_before_the_other(tiny: Tiny, two):
    """The other runs on by itself."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path)
    two.a.say(count=3)
    two.b.say(count=24)
    short, long = two.finish()
    assert (short.new_tokens, long.new_tokens) == (3, 24)
    assert long.ids == alone(path)[0].ids


def test_one_fails(tiny: Tiny, two, monkeypatch):
    """At its fifth token; the other is not told of it, and says what it would have said."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path)
    broken = two.a.engine.call(lambda session: session.context)
    real, calls = type(broken).forward, []

    def forward(context: Any, *arguments: Any, **more: Any) -> Any:
        if context is broken:
            calls.append(None)
            if len(calls) == 8:
                raise ZeroDivisionError("injected")
        return real(context, *arguments, **more)

    monkeypatch.setattr(type(broken), "forward", forward)
    finished = two.ask(count=24)
    assert finished[0].reason == "failed"
    assert "injected" in two.a.wait(EngineFailed, turn_id=1).summary
    assert finished[1].ids == alone(path)[0].ids
    assert not two.b.of(EngineFailed)
    assert two.ask(turn_id=2, count=5)[0].reason == "length"


def test_a_comparison_that_fails(tiny: Tiny, two, monkeypatch):
    """It is told, once, and costs neither reply."""
    from tinychat.engine import beside

    def broken(*arguments: Any) -> float:
        raise MemoryError

    monkeypatch.setattr(beside, "divergence", broken)
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path)
    assert [each.reason for each in two.ask(count=9)] == ["length", "length"]
    assert [notice.text for notice in two.a.of(Notice) if "compared no further" in notice.text] == [
        "The two are compared no further. The machine ran out of memory."
    ]
    assert not two.a.of(EngineFailed)


def test_one_is_cancelled(tiny: Tiny, two, gate):
    """The other goes on; a cancel of both stops both at the token under way."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path)
    gate.close()
    two.say(count=24)
    two.b.wait(PromptRendered)
    gate.let(10)
    two.a.send(Cancel(turn_id=1))
    gate.let(4)
    two.a.wait(TurnFinished, reason="cancelled")
    two.b.send(Cancel(turn_id=1))
    gate.open()
    assert 0 < two.b.wait(TurnFinished, reason="cancelled").new_tokens < 24


def test_one_has_no_model(tiny: Tiny, two):
    """The other answers all the same, and alone."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.say(count=24)
    assert two.b.wait(EngineFailed, turn_id=1).summary == "No model is loaded."
    assert two.a.wait(TurnFinished).ids == alone(path)[0].ids


def test_a_load_of_one_while_the_other_talks(tiny: Tiny, two):
    """It stops the reply for as long as it takes, and no longer."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.a.say(count=24)
    two.b.send(load_command(tiny.safetensors("gpt2").path))
    assert two.b.wait(ModelReady).info.architecture == "GPT-2"
    assert two.a.wait(TurnFinished).ids == alone(path)[0].ids


def test_shutdown_ends_both(tiny: Tiny, gate):
    """Whoever is asked, in the middle of both replies."""
    made = Two()
    made.a.load(tiny.safetensors("llama").path)
    made.b.load(tiny.safetensors("gpt2").path)
    gate.close()
    made.say(LONG, count=50)
    made.b.wait(PromptRendered)
    gate.let(3)
    made.b.send(Shutdown())
    gate.open()
    assert made.b.engine.close(DEADLINE)
    assert not made.a.alive()
    for engine in (made.a, made.b):
        engine.poll()
        assert engine.of(TurnFinished)[0].reason == "cancelled"


# ---------------------------------------------------------------------------------------------------------------------
# Weights that are held once


def test_the_same_words_share_the_weights(tiny: Tiny, two):
    """One model, two contexts; said; the settings of each are its own."""
    path = tiny.safetensors("llama").path
    two.a.load(path, sampler=(("temperature", 0.0),))
    ready = two.b.load(path, load_id=5, sampler=(("temperature", 1.0),))
    models = [engine.engine.call(lambda session: id(session.context.model)) for engine in (two.a, two.b)]
    contexts = [engine.engine.call(lambda session: id(session.context)) for engine in (two.a, two.b)]
    assert models[0] == models[1]
    assert contexts[0] != contexts[1]
    assert any("held once" in notice for notice in ready.info.notices)
    assert (ready.load_id, ready.sampler.temperature) == (5, 1.0)
    # The one that was there first may go.
    two.a.send(Unload())
    expected = alone(path, count=6)[0].ids
    assert two.b.reply().ids == expected


@pytest.mark.parametrize("more", [{"dtype": "int8"}, {"cache_dtype": "int8"}, {"context": 64}])
def test_other_words_share_nothing(tiny: Tiny, two, more):
    """Catches weights or caches of the wrong form."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path, **more)
    models = [engine.engine.call(lambda session: id(session.context.model)) for engine in (two.a, two.b)]
    assert models[0] != models[1]


def test_shared_weights_go_with_the_last(tiny: Tiny, two):
    """Catches a comparison, or a worker, that holds on to a model that was sent away."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path)
    model = two.a.engine.call(lambda session: weakref.ref(session.context.model))
    two.ask(count=4)
    two.a.send(Unload())
    two.b.send(Unload())
    two.b.say(turn_id=2)
    two.b.wait(EngineFailed, turn_id=2)
    gc.collect()
    assert model() is None


def test_limits_of_each(tiny: Tiny, two):
    """Catches commands that go to the wrong one."""
    path = tiny.safetensors("llama").path
    two.a.load(path)
    two.b.load(path)
    messages = (Message("user", "Hi"),)
    two.a.send(Generate(3, messages, limits=Limits(2, ignore_end=True)))
    two.b.send(Generate(4, messages, limits=Limits(5, ignore_end=True)))
    assert two.a.wait(TurnFinished, turn_id=3).new_tokens == 2
    assert two.b.wait(TurnFinished, turn_id=4).new_tokens == 5
