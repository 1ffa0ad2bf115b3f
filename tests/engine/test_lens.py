"""The logit lens beside transformers' own norm and head, over its own hidden states, for every family."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from checkpoints import VARIANTS
from driven import Driven, driven
from rulers import KERNELS, build, reference
from tiny import Tiny
from transformers import PreTrainedModel

from tinychat.engine.lens import ResidualProbe, lens_logits
from tinychat.protocol import (
    EngineFailed,
    Lens,
    Lensed,
    LensLayer,
    Pace,
    Paused,
    PromptRendered,
    SamplerSettings,
    TokenEmitted,
)

IDS = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(1)).tolist()
HOT = SamplerSettings(temperature=1.3, top_k=0, seed=7)


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


def look(engine: Driven, index: int, turn_id: int = 1) -> Lensed:
    request_id = 1000 + len(engine.of(Lensed))
    engine.send(Lens(request_id, turn_id, index))
    return engine.wait(Lensed, request_id=request_id)


@torch.inference_mode()
def theirs(model: PreTrainedModel, ids: list[int], at: int) -> torch.Tensor:
    """Return the lens by hand, fp32 [layers, V]: transformers' last norm and head over what leaves each of its layers,
    with the cap on logits where the model has one."""
    base = getattr(model.base_model, "language_model", model.base_model)
    norm = next(getattr(base, name) for name in ("norm", "ln_f", "final_layer_norm") if hasattr(base, name))
    layers = len(base.h if hasattr(base, "h") else base.layers)
    streams = torch.stack([state[at] for state in reference(model, ids).hidden[1 : layers + 1]])
    logits = model.get_output_embeddings()(norm(streams))
    cap = getattr(model.config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_the_lens_of_every_family(tiny: Tiny, variant, kernels):
    """Catches a norm without its bias or its one, a cap left out, a stream before a sublayer, another position; and a
    lens whose last layer is not what the model says."""
    made = tiny.safetensors(variant)
    built = build(made.path, kernels=kernels)
    context = built.context()
    context.reuse(IDS)
    logits = context.forward(IDS)
    for at in (39, 36):
        probe = ResidualProbe(built.model.config.layers)
        context.look(IDS[: at + 1], probe)
        ours, expected = lens_logits(built.model, probe.streams), theirs(made.model, IDS, at)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
        if at == 39:
            torch.testing.assert_close(ours[-1], logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(lens_logits(built.model, probe.streams), ours)  # what it reads stays as it is


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
def test_what_is_told_of_each_layer(tiny: Tiny, engine, variant):
    """The best five and the token that was said, against transformers; after the last layer it is what was told with
    the token itself."""
    made = tiny.safetensors(variant)
    engine.load(made.path)
    engine.reply(sampler=HOT, count=6)
    ids = [*engine.of(PromptRendered)[0].ids, *engine.tokens()]
    start = len(ids) - 6
    for event in engine.of(TokenEmitted):
        told = look(engine, event.index)
        assert (told.chosen, told.problem, len(told.layers)) == (event.token_id, "", 3)
        rows = theirs(made.model, ids, start + event.index - 1)
        for layer, row in zip(told.layers, rows, strict=True):
            shares = row.softmax(-1)
            assert [each.probability for each in layer.best] == pytest.approx(shares.topk(5).values.tolist(), rel=1e-3)
            assert layer.best[0].token_id == int(row.argmax())
            assert layer.probability == pytest.approx(float(shares[event.token_id]), rel=1e-3)
            assert abs(layer.rank - 1 - int((row > row[event.token_id]).sum())) <= 1  # two may be as good as equal
        assert told.layers[-1].rank == event.rank
        assert told.layers[-1].probability == pytest.approx(torch.tensor(event.logprob).exp().item(), rel=1e-4)


def test_while_a_reply_waits_and_what_isn_t_there(tiny: Tiny, engine):
    """Looking changes neither caches nor reply; a token that isn't said yet has no rank; the rest are sentences."""
    assert "No model" in look(engine, 0).problem
    path = tiny.safetensors("llama").path
    engine.load(path)
    assert "gone" in look(engine, 0).problem
    plain = engine.reply(count=6).ids
    engine.say(turn_id=2, count=6, pace=Pace("pause"))
    for index in range(3):
        engine.wait(Paused, index + 1)
        told = look(engine, index, turn_id=2)
        assert told.chosen is None
        assert all(layer.rank is layer.probability is None and len(layer.best) == 5 for layer in told.layers)
        assert told.layers[-1].best[0].token_id == plain[index]
        engine.send(Pace("step"))
    engine.send(Pace())
    engine.until(lambda: len(engine.tokens(2)) == 6, "end")
    assert tuple(engine.tokens(2)) == plain
    assert "none of number 9" in look(engine, 8).problem
    assert not engine.of(EngineFailed)


@pytest.mark.parametrize(
    ("ranks", "settled"), [((1, 2, 1, 1), 2), ((1, 1), 0), ((2, 1, 3), None), ((), None), ((None, None), None)]
)
def test_where_it_settles(ranks, settled):
    """From the first layer on that is followed by no other that ranks the token lower."""
    assert Lensed(1, 1, 0, 5, tuple(LensLayer((), rank) for rank in ranks)).settled == settled
