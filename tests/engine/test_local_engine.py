"""The engine's thread with tiny models: what it says, in which order, and what it obeys in between."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from driven import Driven, Gate, driven, load_command
from rulers import KERNELS, build, greedy
from tiny import Tiny

from tinychat import hub
from tinychat.engine import gauges, generation, reply
from tinychat.engine.context import Context
from tinychat.engine.loss_store import fingerprint
from tinychat.models.paged_cache import cache_bytes
from tinychat.protocol import (
    CacheBlocks,
    CacheStats,
    DownloadProgress,
    EngineFailed,
    ExplainText,
    LayerCache,
    Limits,
    MemoryStats,
    Message,
    ModelInfo,
    ModelLoading,
    ModelReady,
    Pace,
    Paused,
    PrefillProgress,
    PromptRendered,
    SamplerSettings,
    SamplerUsed,
    SetSampler,
    TextExplained,
    TokenEmitted,
    Tokenize,
    Tokenized,
    TokenizerReady,
    TurnFinished,
    Unload,
)
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


def forcing(token_id: int) -> SamplerSettings:
    return SamplerSettings(temperature=0.0, logit_bias=((token_id, 1e6),))


# ---------------------------------------------------------------------------------------------------------------------
# Loading


@pytest.mark.parametrize(
    ("variant", "kind"), [("llama", "safetensors"), ("llama", "gguf"), ("gpt2", "safetensors"), ("gpt2", "gguf")]
)
def test_events_of_a_load(tiny: Tiny, engine, variant, kind):
    """Stages in order, fractions that never fall, the tokenizer before the model, the gauges after it, no failure."""
    engine.load(getattr(tiny, kind)(variant).path)
    engine.settle()
    stages = engine.of(ModelLoading)
    assert [stage for stage, following in pairwise([*(s.stage for s in stages), ""]) if stage != following] == [
        "opening the files",
        "starting torch",
        "reading weights",
        "preparing the kernels",
    ]
    assert all(before.fraction <= after.fraction for before, after in pairwise(stages))
    assert (stages[0].fraction, stages[-1].fraction) == (0.0, 1.0)
    kinds = [type(event) for event in engine.events]
    assert kinds.index(TokenizerReady) < kinds.index(ModelReady)
    assert kinds[-3:] == [ModelReady, CacheStats, MemoryStats]
    assert not engine.of(EngineFailed)
    assert {event.load_id for event in engine.events if hasattr(event, "load_id")} == {1}


def test_what_is_said_of_a_model(tiny: Tiny, engine):
    """Name, family, forms, sizes: as the files have them."""
    made = tiny.gguf("llama", "Q4_1")
    info = engine.load(made.path, dtype="auto", prefill_copy="never", context=64).info
    built = build(made.path, "auto")
    layers, head = (next(form for _, form in built.report.forms[role]) for role in ("layers", "head"))
    assert info == ModelInfo(
        name=made.path.stem,
        architecture="Llama",
        parameters=sum(p.numel() for p in made.model.parameters()),
        dtype=layers,
        head_dtype=head,
        dtype_reason=f"{layers} (file Q4_1), head {head} (file Q8_0)",
        format="chat",
        thinking=False,
        context=64,
        model_context=256,
        layers=3,
        weights_bytes=built.report.nbytes,
        cache_bytes=cache_bytes(built.model.attention, 64, built.cache_dtype),
        vocabulary=engine.of(TokenizerReady)[0].vocabulary,
        vocabulary_size=320,
        kernel="numba",
        threads=1,
        load_seconds=info.load_seconds,
        stop=(),
        max_tokens=None,
        copy_reason=info.copy_reason,
        notices=info.notices,
        fingerprint=fingerprint([made.path]),
    )
    assert 0 < info.load_seconds < 60


def test_a_base_model(tiny: Tiny, engine):
    """It continues a transcript, with its stop strings and a limit, and none of them for a text as it is."""
    info = engine.load(tiny.safetensors("gpt2").path).info
    assert (info.format, info.stop, info.max_tokens) == ("base", ("\nUser:", "\nAssistant:"), 256)
    finished = engine.reply("Hi", limits=Limits(), turn_id=1)
    assert finished.reason in ("stop", "eos", "context")
    prompt = engine.of(PromptRendered)[-1].ids
    decoded = engine.engine.call(lambda session: session.opened.tokenizer.decode(prompt, skip_special=False))
    assert decoded == "User: Hi\nAssistant:"
    engine.reply("Hi", raw=True, turn_id=2, count=3)
    prompt = engine.of(PromptRendered)[-1].ids
    assert engine.engine.call(lambda session: session.opened.tokenizer.decode(prompt)) == "Hi"


def test_a_transcript_s_stop_strings(tiny: Tiny, engine):
    """A base model begins to speak for the person: the reply ends there, nothing of it is shown or kept. As it is
    (`raw`), it may."""
    engine.load(tiny.safetensors("gpt2").path)
    spoken = engine.engine.call(
        lambda session: tuple(session.opened.tokenizer.encode(" Hello.\nUser: no", first=False))
    )
    finished = engine.reply("Hi", forced_ids=spoken, count=40, turn_id=1)
    assert (finished.reason, finished.text) == ("stop", " Hello.")
    assert "".join(event.text for event in engine.of(TokenEmitted, turn_id=1)) == " Hello."
    finished = engine.reply("Hi", forced_ids=spoken, count=len(spoken), turn_id=2, raw=True)
    assert (finished.reason, finished.text) == ("length", " Hello.\nUser: no")


def test_downloads_run_elsewhere(tiny: Tiny, engine, monkeypatch):
    """The download's bytes are told as they come, from a thread of its own; everything else is on the engine's."""
    threads: dict[str, set[str]] = {}

    def noting(name: str, real: Any) -> Any:
        def noted(*arguments: Any, **keywords: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread().name)
            return real(*arguments, **keywords)

        return noted

    path = tiny.gguf("llama", "Q4_1").path

    def fetch(card, progress, cancelled, judge):
        threads.setdefault("fetch", set()).add(threading.current_thread().name)
        for done in (0, 50, 100):
            progress("model.gguf", done, 100)
        return path

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(FileTensor, "dense", noting("dense", FileTensor.dense))
    monkeypatch.setattr(FileTensor, "blocks", noting("blocks", FileTensor.blocks))
    monkeypatch.setattr(Context, "forward", noting("forward", Context.forward))
    monkeypatch.setattr(generation, "choose", noting("choose", generation.choose))
    monkeypatch.setattr(torch, "Generator", noting("generator", torch.Generator))
    monkeypatch.setattr(torch, "set_num_threads", noting("set_num_threads", torch.set_num_threads))
    monkeypatch.setattr(reply, "ReplyText", noting("text", reply.ReplyText))
    engine.load(path, dtype="auto")
    engine.reply()
    assert engine.of(DownloadProgress)[-1] == DownloadProgress(1, "model.gguf", 100, 100)
    assert threads.pop("fetch") == {"download"}
    assert threads.keys() == {"dense", "blocks", "forward", "choose", "generator", "set_num_threads", "text"}
    assert set().union(*threads.values()) == {"engine"}


# ---------------------------------------------------------------------------------------------------------------------
# Replies


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_events_of_a_reply(tiny: Tiny, engine, variant):
    """The prompt, its progress, a token an event, the end, the gauges; and the ids are the model's own."""
    made = tiny.safetensors(variant)
    info = engine.load(made.path).info
    engine.events.clear()
    finished = engine.reply(LONG, turn_id=7, count=9, detail="full")
    engine.settle()
    rendered = engine.wait(PromptRendered)
    kinds = [type(event) for event in engine.events if not isinstance(event, CacheStats | MemoryStats)]
    chunks = -(-len(rendered.ids) // 8)
    prefill = [PrefillProgress] * (1 + chunks)
    assert kinds == [PromptRendered, SamplerUsed, *prefill, *[TokenEmitted] * 9, TurnFinished]
    assert [type(event) for event in engine.events[-3:]] == [TurnFinished, CacheStats, MemoryStats]
    progress = engine.of(PrefillProgress)
    assert [p.done for p in progress] == [*range(0, len(rendered.ids), 8), len(rendered.ids)]
    assert {(p.total, p.reused, p.turn_id) for p in progress} == {(len(rendered.ids), 0, 7)}
    expected = greedy(build(made.path).context(info.context), rendered.ids, 9)
    assert engine.tokens(7) == expected
    assert [event.index for event in engine.of(TokenEmitted)] == list(range(9))
    assert all(event.rank == 1 and event.logprob < 0 < event.entropy for event in engine.of(TokenEmitted))
    assert all(event.alternatives[0].token_id == event.token_id for event in engine.of(TokenEmitted))
    assert finished.ids == tuple(expected)
    assert finished.text.startswith("".join(event.text for event in engine.of(TokenEmitted)))
    assert (finished.reason, finished.prompt_tokens, finished.reused_tokens, finished.new_tokens) == (
        "length", len(rendered.ids), 0, 9,
    )  # fmt: skip
    assert finished.kernel == info.kernel
    assert finished.first_token_seconds >= finished.prefill_seconds > 0
    assert finished.decode_seconds > 0
    assert rendered.spans[0].start == 0
    assert rendered.spans[-1].end == len(rendered.ids)


def test_settings_are_told_with_the_token_they_begin_at(tiny: Tiny, engine):
    """Would catch: a slider's move that nobody can replay, since its place, or the seed, isn't told."""
    engine.load(tiny.gguf("llama", "Q4_1").path)
    warm = SamplerSettings(temperature=1.3)
    engine.say(count=6, sampler=warm, pace=Pace("pause"))
    engine.wait(Paused)
    for index in range(3):
        engine.send(Pace("step"))
        engine.wait(Paused, index=index + 1)
    cold = SamplerSettings(temperature=0.0, seed=5)
    engine.send(SetSampler(cold))
    engine.send(Pace("play"))
    seed = engine.wait(TurnFinished).seed
    told = engine.of(SamplerUsed)
    assert [(used.index, used.sampler) for used in told] == [
        (0, replace(warm, seed=seed)),
        (3, replace(cold, seed=seed)),
    ]
    tokens = engine.of(TokenEmitted)
    assert engine.events.index(tokens[2]) < engine.events.index(told[1]) < engine.events.index(tokens[3])
    assert all(0 <= token.draw < 1 for token in tokens)
    assert engine.reply(turn_id=2, forced_ids=(5, 6), count=3).forced == 2
    assert [token.draw is None for token in engine.of(TokenEmitted, turn_id=2)] == [True, True, False]


def test_a_conversation_reuses_its_ids(tiny: Tiny, engine):
    """The next turn finds in the caches all of the last one but the token that was never fed; so does the gauge."""
    info = engine.load(tiny.safetensors("llama").path).info
    first = engine.reply("What is", count=6)
    answer = Message("assistant", first.text, first.ids, info.vocabulary)
    turns = (Message("user", "What is"), answer, Message("user", "the capital?"))
    second = engine.reply(turn_id=2, count=4, messages=turns)
    prompt = engine.of(PromptRendered, turn_id=2)[0].ids
    assert prompt[first.prompt_tokens : first.prompt_tokens + 6] == first.ids
    assert second.reused_tokens == first.prompt_tokens + 5
    engine.settle()
    assert engine.of(CacheStats)[-1].reused_tokens == second.reused_tokens
    again = engine.reply(turn_id=3, count=4, messages=turns)
    assert (again.ids, again.reused_tokens) == (second.ids, len(prompt) - 1)
    engine.send(Unload())
    engine.load(tiny.safetensors("llama").path, load_id=2)
    assert engine.reply(turn_id=4, count=4, messages=turns).ids == second.ids, "cold is warm"


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 6])
def test_a_slider_acts_on_the_very_next_token(tiny: Tiny, engine, gate, steps):
    """Settings that come before the first step, during the prompt, before the first token, between tokens. A token that
    is being computed when they come is still chosen by the old ones."""
    engine.load(tiny.safetensors("llama").path)
    gate.close()
    engine.say("What is the capital?", count=12)
    engine.wait(PromptRendered)
    chunks = -(-len(engine.of(PromptRendered)[0].ids) // 8)
    gate.let(steps)
    engine.send(SetSampler(forcing(77)))
    gate.open()
    engine.wait(TurnFinished)
    before = steps - chunks + 2 if steps >= chunks else 0  # the last chunk's own token, and the one being computed
    assert [token_id == 77 for token_id in engine.tokens()] == [False] * before + [True] * (12 - before)


def test_a_slider_of_another_reply(tiny: Tiny, engine):
    """Settings sent while nothing is said don't reach into the next reply, which brings its own."""
    engine.load(tiny.safetensors("llama").path)
    engine.send(SetSampler(forcing(77)))
    assert 77 not in engine.reply(count=5).ids


def test_seeds(tiny: Tiny, engine):
    """Each reply reports its seed, drawn where none is set; with it the reply can be had again."""
    engine.load(tiny.safetensors("llama").path)
    hot = SamplerSettings(temperature=2.0, top_k=0, top_p=1.0)
    first, second = (engine.reply(turn_id=turn, sampler=hot, count=12) for turn in (1, 2))
    assert first.seed != second.seed
    assert first.ids != second.ids
    seeded = SamplerSettings(temperature=2.0, top_k=0, top_p=1.0, seed=first.seed)
    again = engine.reply(turn_id=3, sampler=seeded, count=12)
    assert (again.ids, again.seed) == (first.ids, first.seed)


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_end_ids(tiny: Tiny, engine, variant):
    """An end id ends the reply, is emitted with no text, counted, and not kept; ignored, it is a token like another."""
    engine.load(tiny.safetensors(variant).path)
    end = 2 if variant == "llama" else 0
    finished = engine.reply(forced_ids=(70, 71, end), limits=Limits(), turn_id=1)
    assert (finished.reason, finished.ids, finished.new_tokens) == ("eos", (70, 71), 3)
    assert engine.tokens() == [70, 71, end]
    assert engine.of(TokenEmitted)[-1].text == ""
    assert engine.of(TokenEmitted)[-1].piece in (b"<|im_end|>", b"<|endoftext|>")
    finished = engine.reply(forced_ids=(70, end, 71), count=3, turn_id=2)
    assert (finished.reason, finished.ids) == ("length", (70, end, 71))


def test_every_end_id_counts(tiny: Tiny, engine, tmp_path):
    """generation_config.json lists several, config.json another, the tokenizer its own: the union ends a reply."""
    folder = tmp_path / "m"
    shutil.copytree(tiny.safetensors("llama").path, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [100, 101]}), encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 102}), encoding="utf-8")
    engine.load(folder)
    for turn, end in enumerate((100, 101, 102, 2)):
        finished = engine.reply(forced_ids=(70, end), limits=Limits(), turn_id=turn)
        assert (finished.reason, finished.ids) == ("eos", (70,))


def test_the_context_ends_in_mid_reply(tiny: Tiny, engine):
    """The reason says so, and the next prompt that doesn't fit is refused with the numbers."""
    engine.load(tiny.safetensors("llama").path, context=24)
    finished = engine.reply("A", count=None)
    assert finished.reason == "context"
    assert finished.prompt_tokens + finished.new_tokens == 24
    engine.reply(LONG, turn_id=2)
    failed = engine.wait(EngineFailed, turn_id=2)
    assert "the context holds 24" in failed.summary
    assert "--context" in failed.remedy
    assert engine.reply("A", turn_id=3, count=4).reason == "length"


@pytest.mark.parametrize(("detail", "given"), [("none", False), ("basic", True)])
def test_detail(tiny: Tiny, engine, detail, given):
    """What wasn't asked for isn't computed."""
    engine.load(tiny.safetensors("llama").path)
    engine.reply(detail=detail, count=3)
    for event in engine.of(TokenEmitted):
        assert all((value is not None) == given for value in (event.logprob, event.rank, event.entropy))
        assert event.alternatives == ()


def test_stop_strings_hold_text_back(tiny: Tiny, engine):
    """The last event brings what no token could show; a stop ends with nothing of it."""
    engine.load(tiny.safetensors("llama").path)
    ids = engine.engine.call(lambda session: tuple(session.opened.tokenizer.encode("It is Paris. And", first=False)))
    held = engine.reply(forced_ids=ids, limits=Limits(max_tokens=len(ids), stop=(" And so",)))
    assert held.text == "It is Paris. And"
    assert "".join(event.text for event in engine.of(TokenEmitted)) == "It is Paris."
    stopped = engine.reply(forced_ids=ids, turn_id=2, limits=Limits(stop=("aris",)))
    assert (stopped.reason, stopped.text) == ("stop", "It is P")
    assert engine.engine.call(lambda session: session.opened.tokenizer.decode(stopped.ids)) == "It is P"


def test_one_reply_after_the_other(tiny: Tiny, engine, gate):
    """Sent while one is being made, a second waits its turn: nothing of the two is interleaved."""
    engine.load(tiny.safetensors("llama").path)
    gate.close()
    engine.say("What is", turn_id=1)
    engine.wait(PromptRendered)
    engine.say("Who is", turn_id=2)
    engine.say("How is", turn_id=3)
    gate.open()
    engine.wait(TurnFinished, turn_id=3)
    turns = [event.turn_id for event in engine.events if getattr(event, "turn_id", None)]
    assert turns == sorted(turns)
    assert len(engine.of(TurnFinished)) == 3


# ---------------------------------------------------------------------------------------------------------------------
# Tokenize


def test_tokenize_before_during_and_after(tiny: Tiny, engine, gate, monkeypatch):
    """Without a tokenizer it says so; while the weights load, and between two tokens, it is answered at once."""
    path = tiny.safetensors("llama").path
    engine.send(Tokenize(1, "a"))
    assert engine.wait(Tokenized, request_id=1) == Tokenized(1, (), ready=False)
    engine.send(ExplainText(1, "a"))
    unread = engine.wait(TextExplained, request_id=1)
    assert unread.walk is None
    assert "No vocabulary" in unread.problem
    reading, go_on = threading.Event(), threading.Event()
    real = FileTensor.dense

    def slow(*arguments: Any) -> torch.Tensor:
        reading.set()
        assert go_on.wait(60)
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(FileTensor, "dense", slow)
        engine.send(load_command(path))
        assert reading.wait(60)
        engine.send(Tokenize(2, "What is the capital?"))
        go_on.set()
        engine.wait(ModelReady)
    answer = engine.wait(Tokenized, request_id=2)
    assert b"".join(piece.data for piece in answer.pieces) == b"What is the capital?"
    kinds = [type(event) for event in engine.events]
    assert kinds.index(Tokenized, kinds.index(TokenizerReady)) < kinds.index(ModelReady)
    gate.close()
    engine.say(count=4)
    gate.let(2)
    engine.send(Tokenize(3, "x the"))
    engine.send(ExplainText(4, "x the"))
    gate.let(1)
    ids = [piece.token_id for piece in engine.wait(Tokenized, request_id=3).pieces]
    told = engine.wait(TextExplained, request_id=4)
    assert not told.problem
    assert [token.token_id for split in told.walk.splits for token in split.tokens] == ids
    assert not engine.of(TurnFinished)
    gate.open()
    engine.wait(TurnFinished)


# ---------------------------------------------------------------------------------------------------------------------
# Gauges


@pytest.mark.parametrize("dtype", ["fp32", "auto"])
def test_gauges_are_true(tiny: Tiny, engine, dtype):
    """Every number is the tensors' own, before a reply and after it."""
    engine.load(tiny.gguf("llama", "Q4_1").path, dtype=dtype, context=100)
    finished = engine.reply(count=7)
    engine.settle()

    def own(session) -> tuple[Any, ...]:
        caches = session.context.caches
        layers = tuple(
            LayerCache(
                used_tokens=finished.prompt_tokens + 6,
                reserved_tokens=100,
                used_bytes=(cache.keys[0].nbytes + cache.values[0].nbytes) * -(-(finished.prompt_tokens + 6) // 32),
                reserved_bytes=cache.keys.nbytes + cache.values.nbytes,
                dtype=str(cache.keys.dtype).removeprefix("torch."),
            )
            for cache in caches
        )
        return layers, session.info

    layers, info = engine.engine.call(own)
    assert engine.of(CacheStats)[-1] == CacheStats(layers, 0, CacheBlocks(1, 0, 5, 0))
    assert len(layers) == 3
    memory = engine.of(MemoryStats)[-1]
    assert memory.weights == info.weights_bytes
    assert memory.cache_used == sum(layer.used_bytes for layer in layers)
    assert memory.cache_reserved == sum(layer.reserved_bytes for layer in layers) == info.cache_bytes
    assert memory.weights + memory.cache_used < memory.process < 64e9
    assert 0 < memory.available < 1e14
    assert engine.of(CacheStats)[0].layers[0].used_tokens == 0, "the run that prepares the kernels leaves nothing"


def test_gauges_are_read_at_their_pace(tiny: Tiny, engine, monkeypatch):
    """At most so many a second, but one at the end whatever the time: catches a screen that is flooded, or stale."""
    monkeypatch.setattr(gauges, "EVERY", 1e9)
    engine.load(tiny.safetensors("llama").path)
    engine.reply(count=20)
    engine.settle()
    assert len(engine.of(CacheStats)) == len(engine.of(MemoryStats)) == 2
    monkeypatch.setattr(gauges, "EVERY", 0.0)
    engine.load(tiny.safetensors("llama").path, load_id=2)
    engine.events.clear()
    engine.reply(count=20, turn_id=2)
    engine.settle()
    assert len(engine.of(CacheStats)) > 20


# ---------------------------------------------------------------------------------------------------------------------
# What a model begins with


def test_sources_of_settings(tiny: Tiny, engine, tmp_path):
    """Flag before models.toml before the files before what is built in; each says where it came from."""
    folder = tmp_path / "m"
    shutil.copytree(tiny.safetensors("llama").path, folder)
    given = {"temperature": 0.6, "top_p": 0.7, "top_k": 33, "repetition_penalty": 1.25, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(given), encoding="utf-8")
    ready = engine.load(
        folder, model={"sampler": (("temperature", 0.4), ("top_p", 0.5))}, sampler=(("temperature", 0.2), ("seed", 9))
    )
    assert ready.sampler == SamplerSettings(
        temperature=0.2, top_p=0.5, top_k=33, repetition_penalty=1.25, seed=9, min_p=SamplerSettings().min_p
    )
    sources = dict(ready.sources)
    assert {
        name: sources[name] for name in ("temperature", "top_p", "top_k", "repetition_penalty", "min_p", "seed")
    } == {
        "temperature": "flag",
        "top_p": "models.toml",
        "top_k": "generation_config.json",
        "repetition_penalty": "generation_config.json",
        "min_p": "built-in",
        "seed": "flag",
    }


def test_settings_of_a_gguf_file(engine, tmp_path):
    """Its own keys, where there are any."""
    from gguf_files import write_gguf

    metadata = {"general.sampling.temp": 0.25, "general.sampling.top_k": 11}
    ready = engine.load(write_gguf(tmp_path / "m.gguf", "llama", "F32", metadata=metadata).path)
    assert (ready.sampler.temperature, ready.sampler.top_k) == (0.25, 11)
    assert dict(ready.sources)["top_k"] == "GGUF metadata"


def test_an_unknown_cut_of_text_is_said_with_the_model(engine, tmp_path):
    """The tokenizer knows that its ids are a guess, and nobody tells the person."""
    from gguf_files import write_gguf

    path = write_gguf(tmp_path / "m.gguf", "llama", "F32", metadata={"tokenizer.ggml.pre": "never-heard-of"}).path
    assert any("'never-heard-of'" in notice for notice in engine.load(path).info.notices)


@pytest.mark.parametrize(
    ("value", "name", "kept"),
    [(-1, "top_k", 0), (7.0, "temperature", None), ("hot", "temperature", None), (0.0, "repetition_penalty", None)],
)
def test_settings_that_no_sampler_has(tiny: Tiny, engine, tmp_path, value, name, kept):
    """-1 is how some files write "off"; what is out of its range is passed over, and said."""
    folder = tmp_path / "m"
    shutil.copytree(tiny.safetensors("llama").path, folder)
    (folder / "generation_config.json").write_text(json.dumps({name: value}), encoding="utf-8")
    ready = engine.load(folder)
    expected = getattr(SamplerSettings(), name) if kept is None else kept
    assert getattr(ready.sampler, name) == expected
    notices = [notice for notice in ready.info.notices if name in notice]
    assert bool(notices) == (kept is None)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
def test_both_paths_say_the_same(tiny: Tiny, engine, monkeypatch, kernels):
    """In fp32 the text doesn't depend on the path, and the path is recorded."""
    from tinychat.engine import kernel_choice

    monkeypatch.setattr(kernel_choice, "choose_kernels", lambda threads: (kernels, ()))
    info = engine.load(tiny.safetensors("llama").path).info
    finished = engine.reply(LONG, count=30)
    assert info.kernel == finished.kernel == kernels.NAME
    prompt = engine.of(PromptRendered)[0].ids
    assert list(finished.ids) == greedy(build(tiny.safetensors("llama").path).context(256), prompt, 30)


# ---------------------------------------------------------------------------------------------------------------------
# Speculation


@pytest.mark.parametrize("more", [{}, {"raw": True}, {"forced_ids": (9, 8, 7)}])
def test_speculation_is_told(engine: Driven, tiny: Tiny, more):
    """The reply is the same; each token says whether it had been guessed, and the result how many were."""
    engine.load(tiny.safetensors("llama").path)
    plain = engine.reply(LONG, 1, 60, **more)
    same = engine.reply(LONG, 2, 60, sampler=SamplerSettings(temperature=0.0, speculate=5), **more)
    assert (same.ids, same.text) == (plain.ids, plain.text)
    assert engine.tokens(1) == engine.tokens(2)
    assert (plain.drafted, plain.accepted, plain.kernel) == (0, 0, plain.kernel)
    tokens = engine.of(TokenEmitted, turn_id=2)
    assert sum(token.accepted for token in tokens) == same.accepted
    assert tokens[-1].drafted == same.drafted >= same.accepted
    assert same.drafted > 0
    assert same.kernel == f"{plain.kernel}+lookup"


@pytest.mark.parametrize("limits", [Limits(max_tokens=23), Limits(stop=("e",)), Limits()])
def test_speculation_ends_where_it_would_have(engine: Driven, tiny: Tiny, limits):
    """Limits, stop strings and end ids inside guesses; the next turn finds the same tokens in the caches."""
    engine.load(tiny.safetensors("llama").path)
    found = []
    for turn_id, speculate in ((1, 0), (3, 8)):
        sampler = SamplerSettings(temperature=0.9, seed=4, speculate=speculate)
        first = engine.reply(LONG, turn_id, sampler=sampler, limits=limits)
        held = engine.engine.call(lambda session: list(session.context.ids))
        engine.engine.call(lambda session: session.context.clear())
        found.append((first.ids, first.reason, first.new_tokens, held))
    assert found[0] == found[1]


def test_speculation_is_switched_on_in_mid_reply(engine: Driven, tiny: Tiny, gate: Gate):
    """From the next token on, and the result names it."""
    engine.load(tiny.safetensors("llama").path)
    plain = engine.reply(LONG, 1, 60)
    gate.close()
    engine.say(LONG, 2, 60)
    gate.let(12)
    engine.send(SetSampler(SamplerSettings(temperature=0.0, speculate=4)))
    gate.open()
    same = engine.wait(TurnFinished, turn_id=2)
    assert same.ids == plain.ids
    assert same.kernel.endswith("+lookup")
