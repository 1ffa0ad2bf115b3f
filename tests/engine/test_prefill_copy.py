"""A bf16 copy of weights in blocks for long prompts: when it is kept, what it costs, what it may and may not change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from driven import Driven, driven, load_command
from rulers import build, card, greedy
from tiny import Tiny

from tinychat.engine import bench, loading, loss, memory
from tinychat.engine.prefill_copy import judge
from tinychat.models.linear import COPY_FROM, Abilities, Blocked, Copied, abilities
from tinychat.protocol import EngineFailed, MemoryStats, ModelInfo, SamplerSettings

HERE = Abilities(abilities().fp32, abilities().bf16, abilities().blocks)
LONG = "The capital of France is Paris. The capital of Italy is Rome. " * 3
"""More than COPY_FROM tokens of the tiny vocabulary."""
needs_copies = pytest.mark.skipif(not (HERE.blocks and HERE.bf16), reason="there is nothing to copy, or no copy")


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


@pytest.fixture(autouse=True)
def no_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say by themselves what the processor has."""
    monkeypatch.setattr(loading, "abilities", lambda: HERE)


@pytest.mark.parametrize(
    ("asked", "bf16", "amx", "free", "kept", "reason", "unexpected"),
    [
        ("auto", True, True, 1601, True, "bf16 copy of the weights, 200 bytes: this processor has AMX.", False),
        ("auto", True, True, 1600, False, "copy of 200 bytes would take more than an eighth of the 1.6 kB", True),
        ("auto", True, False, 10**9, False, "without AMX, a bf16 copy of 200 bytes would gain little.", False),
        ("auto", False, False, 10**9, False, "this machine has no packed bf16 product for a copy.", False),
        ("always", True, False, 300, True, "bf16 copy of the weights, 200 bytes: it was asked for.", False),
        ("always", False, False, 10**9, False, "this machine has no packed bf16 product for a copy.", True),
        ("never", True, True, 10**9, False, "a bf16 copy of 200 bytes was not wanted.", False),
    ],
)
def test_when_it_is_kept(asked, bf16, amx, free, kept, reason, unexpected):
    """Catches an eighth on the wrong side, a wish that isn't heeded, and a fallback without a word."""
    copy = judge(asked, Abilities(True, bf16, True, amx), 200, free)
    assert (copy.kept, copy.nbytes, copy.unexpected) == (kept, 200, unexpected)
    assert copy.reason.startswith("Long prompts are multiplied by ")
    assert reason in copy.reason


@pytest.mark.parametrize(("asked", "said"), [("auto", False), ("never", False), ("always", True)])
def test_nothing_to_copy(asked, said):
    """Dense weights: only who asked for a copy is told."""
    copy = judge(asked, Abilities(True, True, True, True), 0, 10**9)
    assert (copy.kept, bool(copy.reason), copy.unexpected) == (False, said, said)


def products(model: Any) -> list[Blocked]:
    """Return the products by blocks of the first layer and of the head."""
    first = model.layers[0]
    found = (first.self_attn.qkv_proj, first.self_attn.o_proj, first.mlp.gate_up_proj, first.mlp.down_proj)
    return [*found, model.lm_head]


@needs_copies
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_it_is_counted(tiny: Tiny, engine, kind):
    """Every matrix of the layers has one, the head none; catches bytes that a figure leaves out or counts twice, and a
    limit of decoding that thinks the copy is read for each token."""
    path = tiny.gguf("llama", kind).path
    infos: dict[str, ModelInfo] = {}
    stats: dict[str, MemoryStats] = {}
    per_token: dict[str, float] = {}
    for load_id, asked in enumerate(("auto", "never", "always")):
        infos[asked] = engine.load(path, load_id, dtype="auto", prefill_copy=asked, context=128).info
        per_token[asked] = engine.engine.call(lambda session: bench.bytes_per_token(session, 10))
        kinds = engine.engine.call(lambda session: [type(made) for made in products(session.context.model)])
        assert kinds == [Copied if asked == "always" else Blocked] * 4 + [Blocked]
        engine.settle()
        stats[asked] = engine.of(MemoryStats)[-1]
    auto, never, always = infos["auto"], infos["never"], infos["always"]
    with_copy = build(path, "auto", copy=True)
    parameters = sum(with_copy.report.forms["layers"].values())
    assert always.copy_bytes == with_copy.planned.copy_bytes == 2 * parameters
    assert with_copy.planned.nbytes == always.weights_bytes == never.weights_bytes + always.copy_bytes
    assert auto.weights_bytes == never.weights_bytes
    assert (auto.copy_bytes, never.copy_bytes) == (0, 0)
    assert (stats["always"].weights, stats["always"].copy) == (always.weights_bytes, always.copy_bytes)
    assert (stats["never"].weights, stats["never"].copy) == (never.weights_bytes, 0)
    assert per_token["always"] == per_token["never"]
    assert "it was asked for" in always.copy_reason
    assert "was not wanted" in never.copy_reason
    assert "without AMX" in auto.copy_reason
    assert always.dtype_reason == never.dtype_reason, "losses are kept by it, and are those of the blocks"
    assert always.notices == never.notices == auto.notices == ()


@needs_copies
def test_the_result_names_it(tiny: Tiny, engine):
    """The path of a reply is in its result, with and without guesses; what is generated is the model's own text."""
    path = tiny.gguf("llama", "Q4_1").path
    info = engine.load(path, dtype="auto", prefill_copy="always", context=256).info
    assert info.kernel.endswith("+copy")
    plain = engine.reply(LONG, 1, 24)
    assert plain.prompt_tokens >= COPY_FROM
    assert plain.kernel == info.kernel
    ahead = engine.reply(LONG, 2, 24, sampler=SamplerSettings(temperature=0.0, speculate=8))
    assert ahead.kernel in (info.kernel, f"{info.kernel}+lookup")
    assert ahead.ids == plain.ids
    prompt = engine.engine.call(lambda session: session.context.ids[: plain.prompt_tokens])
    assert list(plain.ids) == greedy(build(path, "auto", copy=True).context(256), prompt, 24)


@needs_copies
def test_with_amx_by_itself(tiny: Tiny, engine, monkeypatch):
    """Kept without being asked for, unless memory is scarce, which is said."""
    monkeypatch.setattr(loading, "abilities", lambda: replace(HERE, amx=True))
    path = tiny.gguf("llama", "Q4_1").path
    info = engine.load(path, 1, dtype="auto", context=128).info
    assert "this processor has AMX" in info.copy_reason
    assert info.copy_bytes > 0
    assert info.notices == ()
    monkeypatch.setattr(memory, "available", lambda: 8 * info.copy_bytes)
    scarce = engine.load(path, 2, dtype="auto", context=128).info
    assert (scarce.copy_bytes, scarce.kernel) == (0, info.kernel.removesuffix("+copy"))
    assert scarce.notices == (scarce.copy_reason,)
    assert "more than an eighth" in scarce.copy_reason


@needs_copies
def test_what_cannot_be_had(tiny: Tiny, engine, monkeypatch):
    """Catches a copy that is asked for and left out in silence, or that doesn't count when it is judged what fits."""
    path = tiny.gguf("llama", "Q4_1").path
    info = engine.load(path, 1, dtype="auto", prefill_copy="always", context=128).info
    dense = engine.load(path, 2, dtype="fp32", prefill_copy="always").info
    assert dense.notices == (dense.copy_reason,)
    assert "nothing to copy" in dense.copy_reason
    monkeypatch.setattr(memory, "available", lambda: info.weights_bytes - 1 + info.cache_bytes)
    engine.send(load_command(path, 3, dtype="auto", prefill_copy="always", context=128))
    failed = engine.wait(EngineFailed, load_id=3)
    assert f"{path.stem} with a bf16 copy needs {memory.gigabytes(info.weights_bytes)}" in failed.summary
    assert engine.load(path, 4, dtype="auto", prefill_copy="never", context=128).info.copy_bytes == 0
    engine.send(load_command(path, 5, prefill_copy="sometimes"))
    assert "'sometimes', but has to be one of auto, always, never" in engine.wait(EngineFailed, load_id=5).summary


@needs_copies
def test_a_draft_model_has_none(tiny: Tiny, engine):
    """As the help says; catches a copy whose bytes nobody counts."""
    path = tiny.gguf("llama", "Q4_1").path
    engine.load(path, dtype="auto", prefill_copy="always", context=128, draft=card(path, name="small"))
    kinds = engine.engine.call(lambda session: {type(made) for made in products(session.draft.model)})
    assert kinds == {Blocked}


@needs_copies
def test_losses_are_those_of_the_blocks(tiny: Tiny, engine):
    """Catches a figure that changes with the copy, under a name that doesn't."""
    path = tiny.gguf("llama", "Q4_1").path
    lost = []
    for load_id, asked in enumerate(("never", "always")):
        engine.load(path, load_id, dtype="auto", prefill_copy=asked, context=128)
        lost.append(engine.engine.call(loss.measure))
    assert lost[0] == lost[1]


@needs_copies
def test_warm_is_cold(tiny: Tiny):
    """A prompt in parts gives what it gives at once: by the copy alone as any bf16 model does (measured: 0.008 of the
    largest logit), partly or wholly by the blocks but for the rounding of activations to bf16 (0.043)."""
    ids = torch.randint(0, 320, (100,), generator=torch.Generator().manual_seed(4)).tolist()
    path = tiny.gguf("llama", "Q4_1").path
    built, without = build(path, "auto", copy=True), build(path, "auto")

    def logits(made: Any, cuts: tuple[int, ...]) -> torch.Tensor:
        context, ends = made.context(128), (0, *cuts, len(ids))
        with torch.inference_mode():
            return [context.forward(ids[a:b]) for a, b in pairwise(ends)][-1].clone()

    cold = logits(built, ())
    for made, cuts, most in (
        (built, (40,), 0.03),
        (built, (68,), 0.03),
        (built, (69,), 0.1),
        (built, (1, 99), 0.1),
        (without, (), 0.1),
    ):
        off = float((logits(made, cuts) - cold).abs().max() / cold.abs().max())
        assert off < most, f"cut at {cuts}: off by {off:.2g} of the largest logit"
        assert off > 0.003 or most < 0.1, "the copy isn't used"
