"""The loop that makes tokens: its steps, its ends, what may stop it, and what the caches hold afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from rulers import KERNELS, Built, build
from tiny import Tiny

from tinychat.engine import generation
from tinychat.engine.context import Context
from tinychat.engine.generation import Prefilled, generate
from tinychat.engine.sampling import Choice
from tinychat.errors import PromptTooLong, TinychatError
from tinychat.protocol import SamplerSettings

GREEDY = SamplerSettings(temperature=0.0)
IDS = torch.randint(3, 320, (128,), generator=torch.Generator().manual_seed(8)).tolist()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 8)


@pytest.fixture(params=["gpt2", "llama"])
def built(request, tiny: Tiny) -> Built:
    return build(tiny.safetensors(request.param).path)


def run(context: Context, prompt: Sequence[int], count: int, settings: SamplerSettings = GREEDY, **more) -> list[int]:
    """Return the first `count` ids of a reply, then stop it."""
    steps = generate(context, prompt, settings, **{"seed": 1, "detail": "none"} | more)
    ids: list[int] = []
    for made in steps:
        if isinstance(made, Choice):
            ids.append(made.token_id)
            if len(ids) == count:
                break
    steps.close()
    return ids


def assert_consistent(context: Context) -> None:
    """The ids and every layer's cache tell of the same tokens."""
    assert {cache.length for cache in context.caches} == {len(context.ids)}
    assert context.used_bytes == sum(cache.used_bytes for cache in context.caches)


def forcing(token_id: int) -> SamplerSettings:
    """Return settings under which only one token can come."""
    return SamplerSettings(temperature=0.0, logit_bias=((token_id, 1e6),))


# ---------------------------------------------------------------------------------------------------------------------
# Steps


def test_steps(built):
    """A record before anything is computed, one a chunk, one a token; the last chunk may be short."""
    steps = generate(built.context(), IDS[:20], GREEDY, seed=0)
    made = [next(steps) for _ in range(7)]
    assert made[:4] == [Prefilled(done, 20, 0) for done in (0, 8, 16, 20)]
    assert all(isinstance(record, Choice) for record in made[4:])


def test_steps_over_what_is_cached(built):
    """`reused` is what wasn't computed again; at least one id always is."""
    context = built.context()
    run(context, IDS[:20], 1)
    steps = generate(context, IDS[:30], GREEDY, seed=0)
    assert [next(steps) for _ in range(3)] == [Prefilled(done, 30, 20) for done in (20, 28, 30)]
    steps.close()
    steps = generate(context, IDS[:30], GREEDY, seed=0)
    assert [next(steps) for _ in range(2)] == [Prefilled(29, 30, 29), Prefilled(30, 30, 29)]


def test_steps_leave_no_mode_behind(built):
    """Catches a generator that waits inside `with torch.inference_mode()`: whoever runs it would be inside, too, and
    two of them would end the mode in each other's place."""
    one, two = (generate(built.context(), IDS[:9], GREEDY, seed=0) for _ in range(2))
    for _ in range(4):
        next(one)
        assert not torch.is_inference_mode_enabled()
        next(two)
    one.close()
    assert isinstance(next(two), Choice)
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("after", range(6))
def test_settings_act_on_the_very_next_token(built, after):
    """Whether they come before the first chunk, between two, or between two tokens."""
    steps = generate(built.context(), IDS[:16], GREEDY, seed=0, detail="none")
    for _ in range(after + 1):
        next(steps)
    made = steps.send(forcing(77))
    while isinstance(made, Prefilled):
        made = next(steps)
    assert made.token_id == 77
    assert next(steps).token_id == 77, "and stay"
    assert steps.send(forcing(78)).token_id == 78


def test_seeds(built):
    """The seed alone decides; each reply starts its numbers afresh."""
    hot = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0)
    context = built.context()
    first = run(context, IDS[:10], 20, hot, seed=3)
    assert run(context, IDS[:10], 20, hot, seed=3) == first
    assert run(built.context(), IDS[:10], 20, hot, seed=3) == first
    assert run(context, IDS[:10], 20, hot, seed=4) != first


def test_penalties_count_prompt_and_reply(built):
    """Catches a history without the reply's own tokens, or the prompt's: 1e6 and 5e5 by 5 are 2e5 and 1e5."""
    chain = SamplerSettings(temperature=0.0, repetition_penalty=5.0, logit_bias=((7, 1e6), (8, 5e5)))
    assert run(built.context(), [9, 10, 11], 3, chain) == [7, 8, 7]
    assert run(built.context(), [9, 7, 11], 3, chain) == [8, 7, 7]


def test_frequency_counts_the_reply_alone(built, monkeypatch):
    """1e6 - 2 * (how often) against 1e6 - 3: 7 twice, then 8, whatever the prompt holds. The model has no say."""
    context = built.context()
    monkeypatch.setattr(context, "forward", lambda ids, *more: torch.zeros(320))
    chain = SamplerSettings(temperature=0.0, frequency_penalty=2.0, logit_bias=((7, 1e6), (8, 1e6 - 3)))
    assert run(context, [7, 7, 7, 7], 4, chain) == [7, 7, 8, 7]


def test_forced_ids(built):
    """They come whatever the sampler says, are counted, reported, and cost a draw each, so that what follows is the
    same as if the model had chosen them."""
    hot = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, repetition_penalty=1.3)
    free = run(built.context(), IDS[:10], 12, hot, seed=5)
    assert run(built.context(), IDS[:10], 12, hot, seed=5, forced=free[:6]) == free
    assert run(built.context(), IDS[:10], 4, hot, forced=[300, 0, 319])[:3] == [300, 0, 319]
    steps = generate(built.context(), IDS[:3], GREEDY, seed=0, forced=[300])
    made = [next(steps) for _ in range(3)][-1]
    assert made.rank > 1
    assert made.logprob < 0


@pytest.mark.parametrize("unknown", [-1, 320, 10**9])
def test_forced_ids_that_are_no_tokens(built, unknown):
    """A negative one would be the last token to torch, and a large one an IndexError."""
    with pytest.raises(TinychatError, match=rf"{unknown} is none of this model.*319"):
        run(built.context(), IDS[:5], 3, forced=[4, unknown])


# ---------------------------------------------------------------------------------------------------------------------
# Ends


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
@pytest.mark.parametrize("prompt", [1, 100, 126, 127])
def test_the_context_ends_in_mid_reply(tiny: Tiny, kernels, prompt):
    """GPT-2's table of positions ends at its context: catches position 128 of 0 to 127, and a token too few."""
    built = build(tiny.safetensors("gpt2").path, kernels=kernels)
    assert built.model.config.positions == 128
    context = built.context(128)
    ids = run(context, IDS[:prompt], 10**6)
    assert len(ids) == 128 - prompt
    assert context.ids == [*IDS[:prompt], *ids][:127]
    assert_consistent(context)


@pytest.mark.parametrize("length", [40, 41, 128])
def test_a_prompt_that_leaves_no_room(built, length):
    """Refused with both numbers before anything is computed; what the caches hold stays."""
    context = built.context(40)
    run(context, IDS[:10], 3)
    before = list(context.ids)
    with pytest.raises(PromptTooLong, match=f"has {length} tokens, but the context holds 40") as caught:
        run(context, IDS[:length], 1)
    assert "--context" in caught.value.remedy
    assert context.ids == before
    assert_consistent(context)
    assert len(run(context, IDS[:39], 5)) == 1


@pytest.mark.parametrize("steps_taken", range(9))
def test_stopping_at_any_step(built, steps_taken):
    """Closed before the first step, between chunks or between tokens: the caches hold what was computed, and go on from
    there with the same result as cold ones."""
    cold = run(built.context(), IDS[:30], 6)
    context = built.context()
    steps = generate(context, IDS[:30], GREEDY, seed=0, detail="none")
    for _ in range(steps_taken):
        next(steps)
    steps.close()
    computed = min(max(steps_taken - 1, 0) * 8, 30)
    assert context.ids[:30] == IDS[:computed]
    assert len(context.ids) == computed + max(steps_taken - 6, 0)
    assert_consistent(context)
    assert run(context, IDS[:30], 6) == cold


# ---------------------------------------------------------------------------------------------------------------------
# Failures


@pytest.mark.parametrize("failing", ["first chunk", "second chunk", "third token"])
@pytest.mark.parametrize("layer", [0, 2])
def test_an_error_in_a_layer(built, monkeypatch, failing, layer):
    """The layers before it have cached a token that the others haven't: all are as before, and usable."""
    cold = run(built.context(), IDS[:20], 6)
    context = built.context()
    cache = context.caches[layer]
    calls = {"first chunk": 1, "second chunk": 2, "third token": 5}[failing]
    real = type(cache).append_attend

    def failing_at_last(self, qkv):
        nonlocal calls
        calls -= self is cache
        if self is cache and calls == 0:
            raise RuntimeError("injected")
        return real(self, qkv)

    monkeypatch.setattr(type(cache), "append_attend", failing_at_last)
    with pytest.raises(RuntimeError, match="injected"):
        run(context, IDS[:20], 6)
    held = {"first chunk": 0, "second chunk": 8, "third token": 21}[failing]
    assert context.ids == [*IDS[:20], *cold][:held]
    assert_consistent(context)
    assert run(context, IDS[:20], 6) == cold


def norm_of(built: Built, layer: int, place: int) -> torch.Tensor:
    """Return the weight of the first or the second norm of a layer."""
    block = built.model.layers[layer]
    norm = (block.input_layernorm, block.post_attention_layernorm)[place]
    return norm if isinstance(norm, torch.Tensor) else norm[0]


@torch.inference_mode()
def poison(weight: torch.Tensor, value: float) -> float:
    """Change one number of a weight; return what it was."""
    before = float(weight[5])
    weight[5] = value
    return before


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
@pytest.mark.parametrize("variant", ["gpt2", "llama"])
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("place", [0, 1], ids=["first norm", "second norm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_name_their_layer(tiny: Tiny, kernels, variant, layer, place, value):
    """argmax of NaN is a token like any other: the reply stops instead, and says where it began."""
    built = build(tiny.safetensors(variant).path, kernels=kernels)
    context = built.context()
    cold = run(context, IDS[:10], 4)
    context.clear()
    before = poison(norm_of(built, layer, place), value)
    tap = rf"blocks\.{layer}\.ln{place + 1}\.hook_normalized"
    with pytest.raises(TinychatError, match=f"the first was in {tap}") as caught:
        run(context, IDS[:10], 4)
    assert caught.value.remedy
    # What the caches took in on the way is not kept.
    assert context.ids == []
    assert_consistent(context)
    poison(norm_of(built, layer, place), before)
    assert run(context, IDS[:10], 4) == cold


def test_an_overflow_names_its_place(tiny: Tiny):
    """Finite weights can overflow, too: 1e30 goes through gate and up, and their product is the first that can't be."""
    built = build(tiny.safetensors("llama").path)
    poison(norm_of(built, 1, 1), 1e30)
    with pytest.raises(TinychatError, match=r"the first was in blocks\.1\.mlp\.hook_post"):
        run(built.context(), IDS[:10], 4)


def test_numbers_that_are_none_in_mid_reply(tiny: Tiny):
    """The tokens before are kept; it is the token after that doesn't come."""
    built = build(tiny.safetensors("llama").path)
    steps = generate(built.context(), IDS[:10], GREEDY, seed=0)
    made = [next(steps) for _ in range(6)]
    assert isinstance(made[-1], Choice)
    poison(norm_of(built, 1, 0), float("nan"))
    with pytest.raises(TinychatError, match=r"blocks\.1\."):
        next(steps)
