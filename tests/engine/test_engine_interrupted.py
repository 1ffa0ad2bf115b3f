"""The engine's thread when something stops it: cancel, failure, another model, the end; it stays usable and says so."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from driven import DEADLINE, Driven, Gate, driven, load_command
from rulers import build
from tiny import Tiny

from tinychat import hub
from tinychat.engine import generation, loading, memory, reply
from tinychat.engine.context import Context
from tinychat.errors import Cancelled, DownloadError, TemplateError, TinychatError
from tinychat.models.paged_cache import cache_bytes
from tinychat.protocol import (
    Cancel,
    EngineFailed,
    Limits,
    ModelLoading,
    ModelReady,
    PrefillProgress,
    PromptRendered,
    Shutdown,
    TokenEmitted,
    Tokenize,
    Tokenized,
    TokenizerReady,
    TurnFinished,
    Unload,
)
from tinychat.text.tokenizer import Tokenizer
from tinychat.weights.file_tensor import FileTensor

LONG = "The capital of France is Paris. " * 6


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


@pytest.fixture
def gate(monkeypatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 8)


class Stall:
    """A place where the engine, or a download, waits for the test."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.go_on.wait(DEADLINE)


@pytest.fixture
def slow_download(monkeypatch) -> Stall:
    """A download that lasts until it is cancelled or let go on."""
    stall = Stall()

    def fetch(card, progress, cancelled, judge):
        progress("model.safetensors", 1, 100)
        stall.reached.set()
        while not stall.go_on.wait(0.01):
            if cancelled.is_set():
                raise Cancelled("The download was stopped.")
        return hub.located(card)

    monkeypatch.setattr(hub, "fetch", fetch)
    return stall


@pytest.fixture
def slow_read(monkeypatch) -> Stall:
    """A load that stands still at its third tensor."""
    stall, reads = Stall(), []
    real = FileTensor.dense

    def dense(*arguments: Any) -> torch.Tensor:
        reads.append(None)
        if len(reads) == 3:
            stall()
        return real(*arguments)

    monkeypatch.setattr(FileTensor, "dense", dense)
    return stall


def assert_usable(tiny: Tiny, engine: Driven, load_id: int = 90) -> None:
    engine.load(tiny.safetensors("llama").path, load_id=load_id)
    assert engine.reply("Is it?", turn_id=load_id, count=4).new_tokens == 4


# ---------------------------------------------------------------------------------------------------------------------
# Cancel


def test_cancel_in_the_download(tiny: Tiny, engine, slow_download):
    """The download ends at once, the load with it, as cancelled and not as failed."""
    engine.send(load_command(tiny.safetensors("llama").path))
    assert slow_download.reached.wait(DEADLINE)
    engine.send(Cancel(load_id=1))
    assert engine.wait(EngineFailed, load_id=1).cancelled
    slow_download.go_on.set()
    assert_usable(tiny, engine)
    assert not engine.of(ModelReady, load_id=1)


def test_cancel_in_the_load(tiny: Tiny, engine, slow_read):
    """Between two tensors; nothing of the model stays."""
    engine.send(load_command(tiny.safetensors("llama").path))
    assert slow_read.reached.wait(DEADLINE)
    engine.send(Cancel(load_id=1))
    slow_read.go_on.set()
    assert engine.wait(EngineFailed, load_id=1).cancelled
    engine.settle()
    assert not engine.of(ModelReady)
    engine.send(Tokenize(1, "a"))
    assert not engine.wait(Tokenized).ready
    assert_usable(tiny, engine)


def test_cancel_of_another_load(tiny: Tiny, engine, slow_read):
    """Catches a cancel that comes late and ends the load after it."""
    engine.send(load_command(tiny.safetensors("llama").path, load_id=2))
    assert slow_read.reached.wait(DEADLINE)
    engine.send(Cancel(load_id=1))
    slow_read.go_on.set()
    engine.wait(ModelReady, load_id=2)
    assert not engine.of(EngineFailed)


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_cancel_in_the_prompt(tiny: Tiny, engine, gate, chunks):
    """No chunk more is computed than the one under way; what is in the caches is kept and used."""
    engine.load(tiny.safetensors("llama").path)
    expected = engine.reply(LONG, turn_id=9, count=5).ids
    engine.load(tiny.safetensors("llama").path, load_id=2)  # else the caches still held the prompt
    gate.close()
    passed = gate.passed
    engine.say(LONG, turn_id=1)
    gate.let(chunks)
    engine.send(Cancel(turn_id=1))
    gate.open()
    finished = engine.wait(TurnFinished, turn_id=1)
    assert gate.passed - passed == chunks + 1
    assert (finished.reason, finished.ids, finished.text, finished.new_tokens) == ("cancelled", (), "", 0)
    again = engine.reply(LONG, turn_id=2, count=5)
    assert again.ids == expected
    assert again.reused_tokens >= 8 * chunks


@pytest.mark.parametrize("tokens", [1, 4])
def test_cancel_in_the_reply(tiny: Tiny, engine, gate, tokens):
    """At most the token under way still comes; the text so far is kept, and the next turn goes on from it."""
    engine.load(tiny.safetensors("llama").path)
    expected = engine.reply("What is", turn_id=9, count=20).ids
    gate.close()
    passed = gate.passed
    engine.say("What is", count=20)
    gate.let(tokens)
    engine.send(Cancel(turn_id=1))
    gate.open()
    finished = engine.wait(TurnFinished, turn_id=1)
    assert finished.reason == "cancelled"
    assert gate.passed - passed == tokens + 1
    assert finished.new_tokens == len(engine.tokens())
    assert finished.ids == tuple(engine.tokens()) == expected[: finished.new_tokens]
    assert finished.text.startswith("".join(event.text for event in engine.of(TokenEmitted, turn_id=1)))
    assert engine.reply("What is", turn_id=2, count=20).ids == expected
    assert not engine.of(EngineFailed)


def test_cancel_says_what_was_held_back(tiny: Tiny, engine, gate):
    """Text that waited for a stop string is said when the reply is cancelled."""
    engine.load(tiny.safetensors("llama").path)
    ids = engine.engine.call(lambda session: tuple(session.opened.tokenizer.encode("It is Paris", first=False)))
    gate.close()
    engine.say("What", forced_ids=ids, limits=Limits(ignore_end=True, stop=("is Paris, no",)))
    engine.until(lambda: gate.waiting.wait(0.01), "step")
    while len(engine.tokens()) < len(ids):
        gate.let(1)
        engine.poll()
    engine.send(Cancel(turn_id=1))
    gate.open()
    finished = engine.wait(TurnFinished)
    assert finished.text.startswith("It is Paris")


def test_cancel_of_a_reply_that_waits(tiny: Tiny, engine, gate):
    """It never begins; the one before it goes on, the one behind it comes."""
    engine.load(tiny.safetensors("llama").path)
    gate.close()
    engine.say(turn_id=1)
    engine.wait(PromptRendered)
    engine.say(turn_id=2)
    engine.say(turn_id=3)
    engine.send(Cancel(turn_id=2))
    gate.open()
    engine.wait(TurnFinished, turn_id=3)
    assert [event.turn_id for event in engine.of(TurnFinished)] == [1, 3]
    assert engine.wait(EngineFailed, turn_id=2).cancelled
    assert not engine.of(PromptRendered, turn_id=2)


def test_cancel_that_comes_late(tiny: Tiny, engine):
    """A reply that has ended can't be cancelled, nor does the cancel wait for the next one."""
    engine.load(tiny.safetensors("llama").path)
    engine.reply(turn_id=1)
    engine.send(Cancel(turn_id=1))
    engine.send(Cancel(turn_id=2))
    assert engine.reply(turn_id=2).reason == "length"


def test_cancel_of_a_load_that_waits(tiny: Tiny, engine, gate):
    """A model asked for during a reply, and then no longer: the loaded one stays."""
    engine.load(tiny.safetensors("llama").path)
    gate.close()
    engine.say(turn_id=1)
    engine.wait(PromptRendered)
    engine.send(load_command(tiny.safetensors("gpt2").path, load_id=2))
    engine.send(Cancel(load_id=2))
    gate.open()
    engine.wait(TurnFinished, turn_id=1)
    assert engine.wait(EngineFailed, load_id=2).cancelled
    assert engine.reply(turn_id=2).new_tokens == 6
    assert not engine.of(ModelLoading, load_id=2)


# ---------------------------------------------------------------------------------------------------------------------
# Another model, no model


@pytest.mark.parametrize("where", ["download", "load"])
def test_two_loads_fast(tiny: Tiny, engine, where, request):
    """The first ends as cancelled, whether its files were on their way or being read; the second is what is loaded."""
    stall = request.getfixturevalue("slow_download" if where == "download" else "slow_read")
    engine.send(load_command(tiny.safetensors("llama").path, load_id=1))
    assert stall.reached.wait(DEADLINE)
    engine.send(load_command(tiny.safetensors("gpt2").path, load_id=2))
    stall.go_on.set()
    ready = engine.wait(ModelReady, load_id=2)
    assert ready.info.architecture == "GPT-2"
    assert engine.wait(EngineFailed, load_id=1).cancelled
    engine.settle()
    assert len(engine.of(ModelReady)) == len(engine.of(EngineFailed)) == 1
    assert engine.reply(count=3).new_tokens == 3


def test_a_load_during_a_reply(tiny: Tiny, engine, gate):
    """It comes when the reply has ended."""
    engine.load(tiny.safetensors("llama").path)
    gate.close()
    engine.say(turn_id=1)
    engine.wait(PromptRendered)
    engine.send(load_command(tiny.safetensors("gpt2").path, load_id=2))
    gate.open()
    engine.wait(ModelReady, load_id=2)
    kinds = [type(event) for event in engine.events]
    assert kinds.index(TurnFinished) < max(place for place, kind in enumerate(kinds) if kind is TokenizerReady)
    assert engine.of(TurnFinished)[0].reason == "length"
    assert engine.reply(turn_id=2).new_tokens == 6


def test_unload(tiny: Tiny, engine):
    """The model is gone from memory, and a reply is refused by a sentence."""
    engine.load(tiny.safetensors("llama").path)
    model = engine.engine.call(lambda session: weakref.ref(session.context.model))
    engine.send(Unload())
    engine.say()
    assert engine.wait(EngineFailed, turn_id=1).summary == "No model is loaded."
    gc.collect()
    assert model() is None
    with pytest.raises(TinychatError, match="No model is loaded"):
        engine.engine.call(lambda session: None)
    assert_usable(tiny, engine)


def test_the_old_model_goes_before_the_new_one_comes(tiny: Tiny, engine):
    """Both at once might not fit."""
    engine.load(tiny.safetensors("llama").path)
    model = engine.engine.call(lambda session: weakref.ref(session.context.model))
    alive: list[bool] = []
    real = loading.load

    def load(*arguments: Any) -> Any:
        gc.collect()
        alive.append(model() is not None)
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load", load)
        engine.load(tiny.safetensors("gpt2").path, load_id=2)
    assert alive == [False]


@pytest.mark.parametrize("where", ["download", "load"])
def test_unload_in_a_load(tiny: Tiny, engine, where, request):
    """It ends the load, too: catches a model that comes after it was sent away."""
    stall = request.getfixturevalue("slow_download" if where == "download" else "slow_read")
    engine.send(load_command(tiny.safetensors("llama").path))
    assert stall.reached.wait(DEADLINE)
    engine.send(Unload())
    stall.go_on.set()
    assert engine.wait(EngineFailed, load_id=1).cancelled
    engine.say()
    assert engine.wait(EngineFailed, turn_id=1).summary == "No model is loaded."
    assert not engine.of(ModelReady)


# ---------------------------------------------------------------------------------------------------------------------
# Failures


def test_a_failure_at_the_fifth_token(tiny: Tiny, engine, monkeypatch):
    """The four before it are kept, the turn ends as failed, the failure follows with its traceback, and the next reply
    is what it would have been."""
    engine.load(tiny.safetensors("llama").path)
    expected = engine.reply(turn_id=9, count=10).ids
    calls = []
    real = generation.choose

    def choose(*arguments: Any) -> Any:
        calls.append(None)
        if len(calls) == 5:
            raise ZeroDivisionError("injected")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(generation, "choose", choose)
        finished = engine.reply(turn_id=1, count=10)
    assert (finished.reason, finished.ids, finished.new_tokens) == ("failed", expected[:4], 4)
    failed = engine.wait(EngineFailed, turn_id=1)
    assert "ZeroDivisionError: injected" in failed.summary
    assert "Traceback" in failed.detail
    assert "choose" in failed.detail
    assert failed.remedy
    kinds = [type(event) for event in engine.events]
    assert kinds.index(TurnFinished, kinds.index(PromptRendered) + 20) < kinds.index(EngineFailed)
    assert engine.reply(turn_id=2, count=10).ids == expected


def test_a_failure_in_a_forward(tiny: Tiny, engine, monkeypatch):
    """Out of memory in torch is a RuntimeError; the person reads that the machine ran out of memory."""
    engine.load(tiny.safetensors("llama").path)
    expected = engine.reply(turn_id=9).ids

    def starved(*arguments: Any) -> torch.Tensor:
        return torch.empty(2**62, dtype=torch.uint8)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "forward", starved)
        assert engine.reply(turn_id=1).reason == "failed"
    failed = engine.wait(EngineFailed, turn_id=1)
    assert failed.summary == "The machine ran out of memory."
    assert "2**62" not in failed.summary
    assert engine.reply(turn_id=2).ids == expected


@pytest.mark.parametrize("method", ["finish", "push"])
def test_a_failure_in_the_text_of_a_reply(tiny: Tiny, engine, monkeypatch, method):
    """Even the end of a reply may fail: the engine doesn't."""
    engine.load(tiny.safetensors("llama").path)

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(reply.ReplyText, method, broken)
        engine.say(turn_id=1)
        assert "injected" in engine.wait(EngineFailed, turn_id=1).summary
    assert engine.reply(turn_id=2).reason == "length"


def test_a_template_that_refuses(tiny: Tiny, engine, monkeypatch):
    """Before anything is rendered: the turn has no beginning and no end, only the failure, in the template's words."""
    engine.load(tiny.safetensors("llama").path)

    def refuse(*arguments: Any, **keywords: Any) -> Any:
        raise TemplateError("Roles must alternate (line 3).", "Start a new chat.")

    with monkeypatch.context() as patch:
        patch.setattr(reply, "render", refuse)
        engine.say(turn_id=1)
        assert engine.wait(EngineFailed, turn_id=1).summary == "Roles must alternate (line 3)."
    assert not engine.of(TurnFinished)
    assert engine.reply(turn_id=2).reason == "length"


@pytest.mark.parametrize("busy", [False, True])
def test_a_failure_in_the_tokenizer(tiny: Tiny, engine, gate, monkeypatch, busy):
    """A library's panic at some odd text must not end the thread, nor the reply that is being made."""
    engine.load(tiny.safetensors("llama").path)

    def panic(*arguments: Any) -> Any:
        raise BaseException("panicked")

    if busy:
        gate.close()
        engine.say(turn_id=1)
        engine.wait(PromptRendered)
        gate.let(1)
    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "pieces", panic)
        engine.send(Tokenize(1, "x"))
        gate.open()
        assert "panicked" in engine.wait(EngineFailed).summary
    if busy:
        assert engine.wait(TurnFinished, turn_id=1).reason == "length"
    assert engine.reply(turn_id=2).reason == "length"


def test_a_failure_in_a_call(tiny: Tiny, engine):
    """What the work raises is raised where it was asked for, and nowhere else."""
    engine.load(tiny.safetensors("llama").path)
    with pytest.raises(ZeroDivisionError):
        engine.engine.call(lambda session: 1 / 0)
    assert engine.engine.call(lambda session: session.info.layers) == 3
    assert not engine.of(EngineFailed)


def test_a_download_that_fails(tiny: Tiny, engine, monkeypatch):
    """Its sentence and its remedy arrive as they are."""

    def fetch(*arguments: Any) -> Any:
        raise DownloadError("There is no network.", "Try later.")

    with monkeypatch.context() as patch:
        patch.setattr(hub, "fetch", fetch)
        engine.send(load_command(tiny.safetensors("llama").path))
        failed = engine.wait(EngineFailed, load_id=1)
    assert (failed.summary, failed.remedy, failed.cancelled) == ("There is no network.", "Try later.", False)
    assert_usable(tiny, engine)


def test_a_file_that_is_no_model(tiny: Tiny, engine, tmp_path):
    """Refused by a sentence that names it; the tokenizer of the model before is gone, too."""
    engine.load(tiny.safetensors("llama").path)
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64)
    engine.send(load_command(bad, load_id=2))
    assert str(bad) in engine.wait(EngineFailed, load_id=2).summary
    engine.send(Tokenize(1, "x"))
    assert not engine.wait(Tokenized).ready
    assert_usable(tiny, engine)


# ---------------------------------------------------------------------------------------------------------------------
# Memory


def cache_size(path, tokens: int) -> int:
    """Return the bytes that caches of so many tokens take, blocks for branches included."""
    built = build(path)
    return cache_bytes(built.model.attention, tokens, built.cache_dtype)


def test_a_context_that_memory_allows(tiny: Tiny, engine, monkeypatch):
    """Half of what is left after the weights, by the numbers of the header; said with both numbers."""
    path = tiny.safetensors("llama").path
    monkeypatch.setattr(memory, "LEAST_CONTEXT", 32)
    info = engine.load(path).info
    assert info.context == info.model_context == 256
    assert not any("context" in notice for notice in info.notices)
    free = info.weights_bytes + 2 * cache_size(path, 128) + 1
    monkeypatch.setattr(memory, "available", lambda: free)
    info = engine.load(path, load_id=2).info
    assert info.context == 128
    notice = next(notice for notice in info.notices if "context" in notice)
    assert "128" in notice
    assert "256" in notice
    assert memory.gigabytes(free) in notice
    # Asked for, it may take all there is.
    assert engine.load(path, load_id=3, context=190).info.context == 190


@pytest.mark.parametrize(("context", "fits"), [(200, False), (199, False), (100, True)])
def test_a_model_that_doesn_t_fit(tiny: Tiny, engine, monkeypatch, context, fits):
    """Refused before a weight is read, with what it needs and what there is."""
    path = tiny.safetensors("llama").path
    info = engine.load(path).info
    free, needed = info.weights_bytes + cache_size(path, 150), cache_size(path, context)
    monkeypatch.setattr(memory, "available", lambda: free)
    reads: list[None] = []
    real = FileTensor.dense
    monkeypatch.setattr(FileTensor, "dense", lambda *arguments: (reads.append(None), real(*arguments))[1])
    engine.send(load_command(path, load_id=2, context=context))
    if fits:
        assert engine.wait(ModelReady, load_id=2).info.context == context
        return
    failed = engine.wait(EngineFailed, load_id=2)
    for number in (info.weights_bytes, needed, free):
        assert memory.gigabytes(number) in failed.summary
    assert f"{context} tokens" in failed.summary
    assert failed.remedy
    assert not reads


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"context": 257}, ["257", "256", "llama"]),
        ({"context": 10**12}, ["1000000000000", "256"]),
        ({"context": 15}, ["15", "16"]),
        ({"context": 1}, ["1", "16"]),
        ({"context": 0}, ["0", "16"]),
        ({"context": -5}, ["-5", "16"]),
        ({"dtype": "fp16"}, ["fp16", "bf16"]),
        ({"head": "fp32"}, ["head", "fp32", "int8"]),
        ({"device": "cuda"}, ["cuda", "CPU"]),
        ({"sampler": (("temperature", 9.0),)}, ["temperature", "9", "0 to 5"]),
    ],
)
def test_what_can_t_be_asked_for(tiny: Tiny, engine, more, words):
    """Each a sentence with the numbers, and none a traceback's."""
    engine.send(load_command(tiny.safetensors("llama").path, **more))
    failed = engine.wait(EngineFailed, load_id=1)
    assert "no sentence for" not in failed.summary
    text = f"{failed.summary} {failed.remedy}"
    assert all(word in text for word in words), text


@pytest.mark.parametrize("context", [16, 17, 256])
def test_the_smallest_and_the_largest_context(tiny: Tiny, engine, context):
    """Both ends of what can be asked for work."""
    assert engine.load(tiny.safetensors("llama").path, context=context).info.context == context
    finished = engine.reply("a", raw=True, count=None)
    assert finished.prompt_tokens + finished.new_tokens == context


# ---------------------------------------------------------------------------------------------------------------------
# The end


@pytest.mark.parametrize("when", ["idle", "download", "load", "prompt", "reply", "queue"])
def test_shutdown(tiny: Tiny, when, gate, request):
    """Whatever is being done, the thread ends at its next step."""
    stall = None
    if when in ("download", "load"):
        stall = request.getfixturevalue("slow_download" if when == "download" else "slow_read")
    made = Driven()
    if stall is not None:
        made.send(load_command(tiny.safetensors("llama").path))
        assert stall.reached.wait(DEADLINE)
    elif when != "idle":
        made.load(tiny.safetensors("llama").path)
        gate.close()
        made.say(LONG)
        made.wait(PromptRendered)
        gate.let({"prompt": 1, "reply": 12, "queue": 1}[when])
        if when == "queue":
            made.say(turn_id=2)
    passed = gate.passed
    made.send(Shutdown())
    gate.open()
    if when == "load":
        stall.go_on.set()
    assert made.engine.close(DEADLINE)
    assert not made.alive()
    assert gate.passed - passed <= 1
    made.poll()
    assert not made.of(ModelReady, load_id=1) or when not in ("download", "load")
    if when in ("prompt", "reply", "queue"):
        assert made.of(TurnFinished, turn_id=1)[0].reason == "cancelled"
        assert not made.of(PromptRendered, turn_id=2)
    with pytest.raises(Cancelled):
        made.engine.call(lambda session: None)


def test_close_says_whether_it_ended(tiny: Tiny, gate):
    """Inside torch it can't: whoever quits has to know, and leave by another way."""
    made = Driven()
    made.load(tiny.safetensors("llama").path)
    gate.close()
    made.say()
    made.until(lambda: gate.waiting.wait(0.01), "step")
    assert not made.engine.close(0.05)
    assert made.alive()
    gate.open()
    assert made.engine.close(DEADLINE)


def test_a_call_that_nobody_answers(tiny: Tiny, gate):
    """Work that waits behind a reply when the engine is shut down is given up, not waited for without end."""
    made = Driven()
    made.load(tiny.safetensors("llama").path)
    gate.close()
    made.say()
    made.until(lambda: gate.waiting.wait(0.01), "step")
    raised: list[BaseException] = []

    def call() -> None:
        try:
            made.engine.call(lambda session: None)
        except BaseException as error:
            raised.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    made.send(Shutdown())
    gate.open()
    caller.join(DEADLINE)
    assert made.engine.close(DEADLINE)
    assert not raised or isinstance(raised[0], Cancelled)
    assert not caller.is_alive()


def test_an_engine_that_did_nothing():
    """It starts no thread of torch's, and ends at once."""
    with driven() as made:
        made.send(Tokenize(1, "x"))
        assert made.wait(Tokenized) == Tokenized(1, (), ready=False)
        made.send(Cancel(turn_id=1, load_id=1))
        made.send(Unload())
        made.say()
        assert made.wait(EngineFailed, turn_id=1).remedy == "Load one first."


def test_progress_is_told_as_it_is_made(tiny: Tiny, engine, gate):
    """A chunk of the prompt is told before the next one is computed, not all of them at the end."""
    engine.load(tiny.safetensors("llama").path)
    gate.close()
    engine.say(LONG)
    for chunk in range(3):
        engine.wait(PrefillProgress, done=8 * chunk)
        gate.let(1)
    gate.open()
    engine.wait(TurnFinished)
