"""What a token's place was given by each head, beside transformers' own attentions, for every family."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from checkpoints import VARIANTS
from driven import Driven, driven
from rulers import KERNELS, build
from tiny import Tiny
from transformers import PreTrainedModel

from tinychat.engine import attention_patterns
from tinychat.engine.attention_patterns import Patterns
from tinychat.engine.context import Context
from tinychat.protocol import (
    Attend,
    Attended,
    EngineFailed,
    MemoryStats,
    Pace,
    Paused,
    PromptRendered,
    SamplerSettings,
    SetViews,
)

CASES = [*((variant, KERNELS[0]) for variant in VARIANTS), *((variant, KERNELS[1]) for variant in ("gpt2", "llama"))]
IDS = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(1)).tolist()
HOT = SamplerSettings(temperature=1.3, top_k=0, seed=7)
LOOKING = SetViews(frozenset({"attention"}))


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


def attend(engine: Driven, index: int, layer: int | None = None, head: int | None = None, turn_id: int = 1) -> Attended:
    request_id = 1000 + len(engine.of(Attended))
    engine.send(Attend(request_id, turn_id, index, layer, head))
    return engine.wait(Attended, request_id=request_id)


@torch.inference_mode()
def theirs(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Return the weights of all layers and heads, fp32 [layers, H, T, S]."""
    model.set_attn_implementation("eager")
    return torch.cat(model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each sequence that the model is run at once more."""
    made: list[int] = []
    real = Context.look

    def look(context, ids, *arguments):
        made.append(len(ids))
        return real(context, ids, *arguments)

    monkeypatch.setattr(Context, "look", look)
    return made


@pytest.mark.parametrize(("variant", "kernels"), CASES, ids=lambda value: getattr(value, "NAME", value))
@torch.inference_mode()
def test_rows_of_every_family(tiny: Tiny, variant, kernels):
    """Each head, the mean of each layer, the maximum over all and whose it is; catches a row of another position, a
    head counted in another layer, a maximum that starts afresh, a cap or a window left out."""
    made = tiny.safetensors(variant)
    built = build(made.path, kernels=kernels)
    context = built.context()
    context.reuse(IDS)
    context.forward(IDS)
    layers = built.model.config.layers
    for at in (39, 36):
        expected = theirs(made.model, IDS[: at + 1])[:, :, at]  # [layers, H, S]
        patterns = Patterns(layers)
        context.look(IDS[: at + 1], patterns)
        for layer in range(layers):
            for head in range(patterns.heads):
                row, largest = patterns.row(layer, head)
                torch.testing.assert_close(row, expected[layer, head], rtol=1e-4, atol=1e-6)
                assert largest is None
            row, largest = patterns.row(layer, None)
            torch.testing.assert_close(row, expected[layer].mean(0), rtol=1e-4, atol=1e-6)
            theirs_of = expected.flatten(0, 1)[largest.long(), torch.arange(at + 1)]
            torch.testing.assert_close(theirs_of, expected[layer].amax(0), rtol=1e-4, atol=1e-6)
        row, largest = patterns.row(None, None)
        torch.testing.assert_close(row, expected.amax((0, 1)), rtol=1e-4, atol=1e-6)
        theirs_of = expected.flatten(0, 1)[largest.long(), torch.arange(at + 1)]
        torch.testing.assert_close(theirs_of, row, rtol=1e-4, atol=1e-6)
    assert context.ids == IDS


@pytest.mark.parametrize("variant", ["gpt2", "llama", "gemma2", "phi3-window"])
def test_what_is_told_of_each_token(tiny: Tiny, engine, runs, variant):
    """Of the place that decided each token, against transformers: heads, means, the maximum; what lies behind a window
    is no part of it; one run a token, whatever is asked of it."""
    made = tiny.safetensors(variant)
    engine.load(made.path)
    engine.reply(sampler=HOT, count=6)
    engine.send(LOOKING)
    ids = [*engine.of(PromptRendered)[0].ids, *engine.tokens()]
    specs = engine.engine.call(lambda session: session.context.model.attention)
    for index in (0, 3, 5):
        length = len(ids) - 6 + index
        expected = theirs(made.model, ids[:length])[:, :, -1]
        count = len(runs)
        for layer, spec in enumerate(specs):
            told = attend(engine, index, layer)
            assert (told.layer, told.head, told.problem) == (layer, None, "")
            assert (told.layers, told.heads, told.kv_heads) == (*expected.shape[:2], spec.kv_heads)
            assert told.window == spec.window
            assert told.first == (0 if spec.window is None else max(0, length - spec.window))
            assert not any(told.weights[: told.first])
            assert sum(told.weights) == pytest.approx(1, abs=1e-5)
            assert told.weights == pytest.approx(expected[layer].mean(0).tolist(), rel=1e-4, abs=1e-6)
            assert {of for of, _ in told.largest} == {layer}
            for head in range(told.heads):
                told = attend(engine, index, layer, head)
                assert (told.layer, told.head, told.largest) == (layer, head, ())
                assert told.weights == pytest.approx(expected[layer, head].tolist(), rel=1e-4, abs=1e-6)
                assert sum(told.weights) == pytest.approx(1, abs=1e-5)
        told = attend(engine, index)
        assert told.weights == pytest.approx(expected.amax((0, 1)).tolist(), rel=1e-4, abs=1e-6)
        for position, (layer, head) in enumerate(told.largest):
            assert float(expected[layer, head, position]) == pytest.approx(told.weights[position], rel=1e-4, abs=1e-6)
        windows = [spec.window for spec in specs]
        assert told.window == (None if None in windows else max(windows))
        assert runs[count:] == [length]


def test_of_a_large_model_one_layer_is_kept(tiny: Tiny, engine, runs, monkeypatch):
    """Where all heads take too much: the same answers, another run a layer, and bytes within the limit."""
    engine.load(tiny.safetensors("llama").path)
    engine.reply(count=6)
    engine.send(LOOKING)
    asked = [(None, None), (1, None), (1, 2), (None, None), (2, 0), (1, 3)]
    whole = [attend(engine, 5, *each).weights for each in asked]
    assert len(runs) == 1
    nbytes = engine.engine.call(lambda session: session.patterns.nbytes)
    monkeypatch.setattr(attention_patterns, "MOST_BYTES", nbytes // 2)
    engine.send(SetViews())
    engine.send(LOOKING)
    told = []
    for each in asked:
        told.append(attend(engine, 5, *each).weights)
        assert engine.engine.call(lambda session: session.patterns.nbytes) <= nbytes // 2
    assert told == whole
    assert len(runs) == 1 + 4, "the maximum, layer 1, layer 2, layer 1 again"


def test_bytes_are_told_and_given_back(tiny: Tiny, engine):
    """On the gauge, as they are asked for, replaced by another token's, and let go of; never those of two tokens."""
    engine.load(tiny.safetensors("llama").path)
    engine.reply(count=6)
    engine.settle()
    before = engine.of(MemoryStats)[-1].kept
    engine.send(LOOKING)
    for index in (5, 2):
        told = attend(engine, index)
        engine.settle()
        size = 4 * len(told.weights) * (told.layers * told.heads + 2)
        assert engine.of(MemoryStats)[-1].kept == before + size
        count = len(engine.of(MemoryStats))
        attend(engine, index, 1, 1)
        engine.settle()
        assert len(engine.of(MemoryStats)) == count, "nothing has changed"
    engine.send(SetViews())
    engine.settle()
    assert engine.of(MemoryStats)[-1].kept == before


def test_while_a_reply_waits_and_what_isn_t_there(tiny: Tiny, engine):
    """Looking changes neither caches nor reply; of a reply that waits, the place of its next token can be asked about;
    the rest are sentences."""
    assert "No model" in attend(engine, 0).problem
    engine.load(tiny.safetensors("llama").path)
    assert "gone" in attend(engine, 0).problem
    plain = engine.reply(count=6).ids
    engine.send(LOOKING)
    engine.say(turn_id=2, count=6, pace=Pace("pause"))
    for index in range(3):
        engine.wait(Paused, index + 1)
        for asked in range(index + 1):
            again, first = attend(engine, asked, 2, 1, turn_id=2), attend(engine, asked, 2, 1)
            assert (again.problem, again.weights) == ("", first.weights)
        engine.send(Pace("step"))
    engine.send(Pace())
    engine.until(lambda: len(engine.tokens(2)) == 6, "end")
    assert tuple(engine.tokens(2)) == plain
    assert "none of number 9" in attend(engine, 8).problem
    assert "3 layers" in attend(engine, 1, 3).problem
    assert "none of number -1" in attend(engine, 1, -1).problem
    assert "4 heads" in attend(engine, 1, 0, 4).problem
    assert not engine.of(EngineFailed)


@pytest.mark.parametrize(("form", "most"), [({"dtype": "bf16"}, 0.03), ({"cache_dtype": "int8"}, 0.05)])
def test_over_coarse_caches(tiny: Tiny, engine, form, most):
    """Near the exact ones, and rows still sum to one."""
    made = tiny.safetensors("llama")
    engine.load(made.path, **form)
    engine.reply(count=6)
    ids = [*engine.of(PromptRendered)[0].ids, *engine.tokens()][:-1]
    expected = theirs(made.model, ids)[:, :, -1]
    for layer in range(3):
        told = attend(engine, 5, layer, 1)
        assert sum(told.weights) == pytest.approx(1, abs=1e-5)
        assert float((torch.tensor(told.weights) - expected[layer, 1]).abs().max()) < most
