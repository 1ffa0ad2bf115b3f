"""A second model that guesses ahead, through the engine: loaded beside the first, measured, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driven import Driven, driven, load_command
from rulers import card
from tiny import Tiny

from tinychat.engine import bench, memory
from tinychat.protocol import EngineFailed, MemoryStats, SamplerSettings

TEXT = "The capital of France is"
AHEAD = SamplerSettings(temperature=0.0, speculate=4)


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


def test_a_draft_model_guesses(engine: Driven, tiny: Tiny) -> None:
    """The model's own twin is always right; the result names the path, memory counts both, and a second turn goes on
    from what both caches hold."""
    path = tiny.safetensors("llama").path
    engine.load(path, 1)
    plain = engine.reply(TEXT, 1, 30)
    alone = engine.of(MemoryStats)[-1]
    ready = engine.load(path, 2, draft=card(path, name="small"))
    assert any(notice.startswith("small drafts tokens ahead; its weights take") for notice in ready.info.notices), (
        ready.info.notices
    )
    same = engine.reply(TEXT, 2, 30, sampler=AHEAD)
    assert same.ids == plain.ids
    assert same.kernel == f"{plain.kernel}+draft"
    assert same.accepted == same.drafted >= 20
    both = engine.of(MemoryStats)[-1]
    assert both.weights == 2 * alone.weights
    assert both.cache_reserved == 2 * alone.cache_reserved
    assert engine.reply(TEXT, 3, 30, sampler=AHEAD).ids == plain.ids
    assert engine.reply(TEXT, 4, 30).kernel == plain.kernel, "off is off"


def test_every_measured_run_is_cold(engine: Driven, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a draft model that has read the prompt in the run before, so that it guesses sooner than in a chat."""
    path = tiny.safetensors("llama").path
    engine.load(path, 1, draft=card(path, name="small"))
    real, held = bench.generate, []

    def generate(context, *arguments, **more):
        held.append((len(context.ids), len(drafting.ids)))
        return real(context, *arguments, **more)

    monkeypatch.setattr(bench, "generate", generate)
    monkeypatch.setattr(bench, "read_rate", lambda: 1.0)  # takes seconds
    drafting = engine.engine.call(lambda session: session.draft)
    engine.engine.call(
        lambda session: bench.measure(session, prompt_tokens=8, new_tokens=20, runs=2, detail="none", speculate=4)
    )
    assert held == [(0, 0)] * 3


def test_another_vocabulary_is_refused(engine: Driven, tiny: Tiny, gpt2_folder: Path) -> None:
    """Its ids mean other tokens: a sentence that names both, and no model is left half loaded."""
    engine.send(load_command(tiny.safetensors("llama").path, 1, draft=card(gpt2_folder)))
    failed = engine.wait(EngineFailed)
    assert failed.load_id == 1
    assert "can't draft for" in failed.summary
    assert "vocabulary" in failed.summary
    assert "--draft" in failed.remedy
    assert engine.load(tiny.safetensors("llama").path, 2)
    assert engine.reply(TEXT, 2, 5).drafted == 0


def test_memory_is_judged_for_both(engine: Driven, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a draft model that is forgotten when the context is fitted to the memory there is."""
    path = tiny.safetensors("llama").path
    first = engine.load(path, 1, context=256).info
    monkeypatch.setattr(memory, "available", lambda: int(1.5 * (first.weights_bytes + first.cache_bytes)))
    assert engine.load(path, 2, context=256)
    engine.send(load_command(path, 3, context=256, draft=card(path, name="small")))
    assert "with small needs" in engine.wait(EngineFailed, load_id=3).summary


def test_a_draft_model_that_was_made_for_less(engine: Driven, tiny: Tiny) -> None:
    """Beyond its own context it drafts nothing, and the reply goes on."""
    ready = engine.load(tiny.safetensors("llama").path, 1, draft=card(tiny.safetensors("llama").path), context=64)
    assert ready.info.context == 64
    plain = engine.reply(TEXT, 1, None)
    same = engine.reply(TEXT, 2, None, sampler=AHEAD)
    assert same.ids == plain.ids
    assert same.reason == plain.reason == "context"
