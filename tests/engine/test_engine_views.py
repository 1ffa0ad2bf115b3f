"""What the engine tells whoever looks at layers or time, and the file of a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven import Driven, driven
from tiny import Tiny

from tinychat.engine import looking, views
from tinychat.engine.layer_statistics import LayerProbe
from tinychat.engine.thread import LocalEngine
from tinychat.engine.trace import Trace, piece_of
from tinychat.errors import TinychatError
from tinychat.protocol import (
    Bandwidth,
    Cancel,
    EngineFailed,
    Inspect,
    LayerStatistics,
    Notice,
    Pace,
    Paused,
    Probed,
    Profiled,
    SamplerSettings,
    SetViews,
    TokenEmitted,
    TurnFinished,
)

LAYERS = SetViews(frozenset({"layers"}))
TIME = SetViews(frozenset({"time"}))


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


def numbers(layers: tuple[LayerStatistics, ...]) -> list[float]:
    """Return what doesn't depend on the clock."""
    return [
        number
        for layer in layers
        for number in (layer.residual_norm, *vars_of(layer.attn_out), *vars_of(layer.mlp_out), *layer.head_entropy)
    ]


def vars_of(spread) -> tuple[float, ...]:
    return spread.least, spread.most, spread.mean, spread.deviation


# ---------------------------------------------------------------------------------------------------------------------
# Layers


def test_nothing_is_tapped_unless_somebody_looks(tiny: Tiny, engine, monkeypatch):
    """Catches a view that costs something while it is closed."""
    engine.load(tiny.safetensors("llama").path)
    monkeypatch.setattr(LayerProbe, "__init__", None)
    monkeypatch.setattr(views.ClockProbe, "__init__", None)
    engine.reply(count=20)
    assert not [*engine.of(Probed), *engine.of(Profiled), *engine.of(Bandwidth), *engine.of(EngineFailed)]


@pytest.mark.parametrize("speculate", [0, 3])
def test_layers_of_every_token(tiny: Tiny, engine, monkeypatch, speculate):
    """Where the screen is fast enough: one event a token, right behind it, the same numbers as by looking again; the
    reply's own ids are what they are without."""
    monkeypatch.setattr(views, "SHOWN_EVERY", 0.0)
    engine.load(tiny.safetensors("llama").path)
    sampler = SamplerSettings(temperature=0.3, seed=5, speculate=speculate)
    text = "What is what is what is"
    plain = engine.reply(text, count=16, sampler=sampler)
    engine.send(LAYERS)
    assert engine.reply(text, turn_id=2, count=16, sampler=sampler).ids == plain.ids
    seen = [event for event in engine.events if isinstance(event, TokenEmitted | Probed) and event.turn_id == 2]
    assert [(type(event), event.index) for event in seen] == [
        (kind, n) for n in range(16) for kind in (TokenEmitted, Probed)
    ]
    for index, told in enumerate(engine.of(Probed, turn_id=2)):
        assert (len(told.layers), told.recomputed, told.problem) == (3, False, "")
        engine.send(Inspect(index, 2, index))
        again = engine.wait(Probed, request_id=index)
        assert (again.turn_id, again.index, again.recomputed) == (2, index, True)
        assert numbers(again.layers) == pytest.approx(numbers(told.layers), rel=1e-3, abs=1e-4)
    engine.send(SetViews())
    engine.reply(text, turn_id=3, count=3)
    assert not engine.of(Probed, turn_id=3)


def test_layers_as_often_as_the_screen_can_take(tiny: Tiny, engine, monkeypatch):
    """Of a fast reply the first token and the last, which is looked at again for it."""
    monkeypatch.setattr(views, "SHOWN_EVERY", 1000.0)
    engine.load(tiny.safetensors("llama").path)
    engine.send(LAYERS)
    engine.reply(count=10)
    assert [(told.index, told.recomputed) for told in engine.of(Probed)] == [(0, False), (9, True)]
    assert engine.of(Probed)[-1].layers


def test_layers_while_paused(tiny: Tiny, engine, monkeypatch):
    """Each step, however fast, tells of the token to come; so does a pause in the middle, and opening the view."""
    monkeypatch.setattr(views, "SHOWN_EVERY", 1000.0)
    engine.load(tiny.safetensors("llama").path)
    engine.send(LAYERS)
    engine.say(count=12, pace=Pace("pause"))
    for index in range(3):
        engine.wait(Paused, index + 1)
        assert engine.wait(Probed, index=index).layers
        engine.send(Pace("step"))
    engine.wait(Probed, index=3)
    engine.send(SetViews())
    engine.send(Pace("step"))
    engine.wait(Paused, index=4)
    assert not engine.of(Probed, index=4)
    engine.send(LAYERS)
    assert engine.wait(Probed, index=4).recomputed
    engine.send(Cancel(turn_id=1))
    engine.wait(TurnFinished)
    assert [told.index for told in engine.of(Probed)] == [0, 1, 2, 3, 4]


def test_inspecting_what_isn_t_there(tiny: Tiny, engine):
    """A sentence each, and no failure."""
    engine.send(Inspect(1, 1, 0))
    assert "No model" in engine.wait(Probed, request_id=1).problem
    engine.load(tiny.safetensors("llama").path)
    engine.send(Inspect(2, 1, 0))
    assert "gone" in engine.wait(Probed, request_id=2).problem
    engine.reply(count=3)
    engine.send(Inspect(3, 1, 4))
    assert "none of number 5" in engine.wait(Probed, request_id=3).problem
    engine.send(Inspect(4, 1, 3))
    assert engine.wait(Probed, request_id=4).layers
    assert not engine.of(EngineFailed)


# ---------------------------------------------------------------------------------------------------------------------
# Time


def test_profiles(tiny: Tiny, engine):
    """One token in 16, the second first; the parts sum to the token's own time."""
    engine.load(tiny.safetensors("llama").path)
    engine.send(TIME)
    engine.reply(count=40)
    told = engine.of(Profiled)
    assert [profile.index for profile in told] == [1, 17, 33]
    for profile in told:
        parts = profile.attention, profile.mlp, profile.head, profile.sampling, profile.rest
        assert all(part > 0 for part in parts)
        seconds = engine.of(TokenEmitted, index=profile.index)[0].seconds
        assert sum(parts) == pytest.approx(1e3 * seconds, rel=1e-6)


def test_bandwidth_is_told_once_a_model(tiny: Tiny, engine, monkeypatch):
    """When somebody first looks at time and the engine is idle: not in the middle of a reply, and measured once."""
    reads: list[int] = []
    monkeypatch.setattr("tinychat.engine.bench.read_rate", lambda size, count: reads.append(size) or 1e9)
    engine.load(tiny.safetensors("llama").path)
    engine.say(count=4, pace=Pace("pause"))
    engine.wait(Paused)
    engine.send(TIME)
    engine.send(Pace("step"))
    engine.wait(Paused, 2)
    assert not engine.of(Bandwidth)
    engine.send(Pace())
    told = engine.wait(Bandwidth)
    assert told.bytes_per_second == 1e9
    assert 0 < told.bytes_per_token <= engine.engine.call(lambda session: session.info.weights_bytes)
    engine.send(TIME)
    engine.settle()
    assert len(engine.of(Bandwidth)) == 1
    engine.load(tiny.safetensors("gpt2").path, 2)
    engine.wait(Bandwidth, 2)
    assert reads == [looking._BUFFER]


# ---------------------------------------------------------------------------------------------------------------------
# Trace


def traced(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("detail", ["none", "full"])
def test_a_trace(tiny: Tiny, tmp_path, detail):
    """A line a token, of every reply, with all that was told of it and what each layer did, whatever the detail."""
    made, file = Driven.__new__(Driven), tmp_path / "trace.jsonl"
    made.engine, made.events = LocalEngine(Trace(file)), []
    made.send = made.engine.send
    try:
        made.load(tiny.safetensors("llama").path)
        made.reply(count=5, detail=detail)
        made.reply(turn_id=2, count=3, forced_ids=(70,), detail=detail)
    finally:
        assert made.engine.close(20)
    lines = traced(file)
    assert [(line["turn"], line["index"]) for line in lines] == [
        *((1, n) for n in range(5)),
        *((2, n) for n in range(3)),
    ]
    assert not made.of(Probed)
    for line, event in zip(lines, made.of(TokenEmitted), strict=True):
        assert list(line)[:4] == ["turn", "index", "id", "piece"]
        assert (line["id"], line["seconds"]) == (event.token_id, event.seconds)
        assert line["rank"] >= 1
        assert line["logprob"] < 0 < line["entropy"]
        assert 0 <= line["draw"] < 1
        assert len(line["layers"]) == (0 if (event.turn_id, event.index) == (2, 0) else 3)
        for layer in line["layers"]:
            assert set(layer) == set(LayerStatistics.__slots__)
            assert set(layer["attn_out"]) == {"least", "most", "mean", "deviation"}
            assert len(layer["head_entropy"]) == 4


def test_bytes_that_are_no_text():
    """They are there in hexadecimal; text is there as it is."""
    assert piece_of("né".encode()) == {"piece": "né"}
    assert piece_of(b"\xc3") == {"piece": "\ufffd", "hex": "c3"}


def test_a_file_that_can_t_be_opened(tmp_path):
    """A sentence with its name."""
    with pytest.raises(TinychatError, match=r"nowhere.*can't be written: No such file or directory"):
        Trace(tmp_path / "nowhere" / "trace.jsonl")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")  # noqa: PTH110
def test_a_full_disk(tiny: Tiny):
    """It is said once, and the reply goes on."""
    made = Driven.__new__(Driven)
    made.engine, made.events = LocalEngine(Trace(Path("/dev/full"))), []
    made.send = made.engine.send
    try:
        made.load(tiny.safetensors("llama").path)
        finished = made.reply(count=5)
    finally:
        assert made.engine.close(20)
    assert finished.new_tokens == 5
    assert [told.text for told in made.of(Notice, turn_id=1)] == [
        "/dev/full can't be written: No space left on device. The trace ends there."
    ]
    assert not made.of(EngineFailed)
