"""What the caches hold from before never changes a reply: warm replies are cold ones, and every id is accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rulers import KERNELS, Built, build
from tiny import Tiny

from tinychat.engine import generation
from tinychat.engine.context import Context
from tinychat.engine.generation import Prefilled, generate
from tinychat.models.paged_cache import cache_bytes
from tinychat.protocol import SamplerSettings

GREEDY = SamplerSettings(temperature=0.0)
IDS = torch.randint(3, 320, (60,), generator=torch.Generator().manual_seed(9)).tolist()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 8)


@pytest.fixture(params=[(v, k) for v in ("gpt2", "llama") for k in KERNELS], ids=lambda p: f"{p[0]}-{p[1].NAME}")
def built(request, tiny: Tiny) -> Built:
    variant, kernels = request.param
    return build(tiny.safetensors(variant).path, kernels=kernels)


class Counting:
    """Counts what a context computes."""

    def __init__(self, context: Context, patch: pytest.MonkeyPatch) -> None:
        self.computed = 0
        real = context.forward

        def forward(ids: Sequence[int], *more: object) -> torch.Tensor:
            self.computed += len(ids)
            return real(ids, *more)

        patch.setattr(context, "forward", forward)


def reply(context: Context, prompt: Sequence[int], count: int) -> tuple[list[int], int]:
    """Return the first ids of a greedy reply, and how many tokens of the prompt were reused."""
    steps = generate(context, prompt, GREEDY, seed=0, detail="none")
    ids: list[int] = []
    reused = -1
    while len(ids) < count:
        made = next(steps)
        if isinstance(made, Prefilled):
            assert made.total == len(prompt)
            assert reused in (-1, made.reused)
            reused = made.reused
        else:
            ids.append(made.token_id)
    steps.close()
    assert {cache.length for cache in context.caches} == {len(context.ids)}
    return ids, reused


def cold(built: Built, prompt: Sequence[int], count: int = 8) -> list[int]:
    return reply(built.context(), prompt, count)[0]


@torch.inference_mode()
def sure(built: Built, prompt: Sequence[int], count: int) -> list[int]:
    """Return the first ids of a cold greedy reply, up to where the two best tokens are about level: there the last bits
    of a sum decide, and they depend on how many rows a product has."""
    context = built.context()
    best = context.forward(prompt).topk(2)
    ids: list[int] = []
    while len(ids) < count and float(best.values[0] - best.values[1]) > 1e-3:
        ids.append(int(best.indices[0]))
        best = context.forward(ids[-1:]).topk(2)
    return ids


def test_ten_repeats(built):
    """The same prompt again and again, each time over the reply before: always the cold reply, one id computed."""
    context = built.context()
    first, reused = reply(context, IDS[:33], 8)
    assert reused == 0
    assert first == cold(built, IDS[:33])
    for _ in range(10):
        assert reply(context, IDS[:33], 8) == (first, 32)


def test_after_a_reply_that_was_cut(built):
    """A stop string, Esc or a limit ends a reply before its last token is in the caches; what was cut off is not."""
    for made in range(1, 6):
        context = built.context()
        ids, _ = reply(context, IDS[:20], made)
        assert context.ids == [*IDS[:20], *ids[:-1]]
        following = [*IDS[:20], *ids[: made // 2], *IDS[40:50]]
        assert reply(context, following, 8) == (cold(built, following), 20 + made // 2)


def test_the_prompt_grows_by_the_reply(built):
    """A conversation: each turn finds all that came before, but for the last token, which was never fed."""
    context, prompt, fed = built.context(), IDS[:10], 0
    for turn in range(3):
        ids, reused = reply(context, prompt, 6)
        assert ids == cold(built, prompt, 6)
        assert reused == fed
        fed = len(prompt) + 5
        prompt = [*prompt, *ids, *IDS[20 + 4 * turn : 24 + 4 * turn]]


@pytest.mark.parametrize("length", [7, 8, 9, 15, 16, 17, 32])
def test_the_prompt_is_what_is_cached(built, length):
    """Exactly, down to the last id, at the borders of chunks: one id is computed, not none."""
    context = built.context()
    steps = generate(context, IDS[:length], GREEDY, seed=0)
    while next(steps) != Prefilled(length, length, 0):
        pass
    steps.close()
    assert context.ids == IDS[:length]
    assert reply(context, IDS[:length], 8) == (cold(built, IDS[:length]), length - 1)


@pytest.mark.parametrize("length", [1, 2, 8, 19])
def test_the_prompt_is_a_prefix_of_what_is_cached(built, length):
    """Regenerating an earlier turn: the rest is forgotten."""
    context = built.context()
    reply(context, IDS[:20], 8)
    assert reply(context, IDS[:length], 8) == (cold(built, IDS[:length]), length - 1)


def test_the_prompt_leaves_the_cached_one_anywhere(built):
    """Branches: for each place where a prompt differs from the cached one, that many ids are reused."""
    context = built.context()
    for place in range(20):
        reply(context, IDS[:20], 4)
        branch = [*IDS[:place], (IDS[place] + 1) % 320, *IDS[30:35]]
        assert reply(context, branch, 6) == (cold(built, branch, 6), place)


def test_a_second_prompt_is_longer_than_the_first(built):
    """Catches masks and buffers that keep the size of an earlier run."""
    context = built.context()
    for length in (3, 30, 5, 59, 12):
        assert reply(context, IDS[:length], 4)[0] == cold(built, IDS[:length], 4)


def _common(one, other) -> int:
    """Return how many ids both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


PROMPTS = st.lists(
    st.tuples(st.integers(0, 24), st.lists(st.sampled_from([5, 6]), max_size=12), st.integers(1, 4)),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROMPTS)
def test_any_conversation(built, prompts):
    """Prompts that share prefixes of any length, replies that stop anywhere: always the cold reply; what is reused and
    what is computed are together the prompt (and the reply but for its last token)."""
    context = built.context()
    with pytest.MonkeyPatch.context() as patch:
        counting = Counting(context, patch)
        for kept, more, count in prompts:
            prompt = [*IDS[:kept], *more] or [5]
            counting.computed = 0
            held = context.held
            ids, reused = reply(context, prompt, count)
            certain = sure(built, prompt, count)
            assert ids[: len(certain)] == certain
            assert reused + counting.computed == len(prompt) + count - 1
            assert reused <= len(prompt) - 1
            assert reused == max(_common(ids, prompt[:-1]) for ids in held)
            assert context.ids == [*prompt, *ids[:-1]]


def test_bytes_are_the_tensors_own(built):
    """The gauges' numbers: reserved is what the tensors take, used grows by blocks of 32 tokens."""
    context = built.context(64)
    assert context.nbytes == sum(cache.keys.nbytes + cache.values.nbytes for cache in context.caches)
    assert context.used_bytes == 0
    reply(context, IDS[:20], 4)
    block = context.nbytes // context.sequence.pools[0].blocks
    assert context.used_bytes == block
    reply(context, IDS[:20], 20)
    assert context.used_bytes == 3 * block  # the first version of the reply is kept
    assert context.nbytes == cache_bytes(built.model.attention, 64, built.cache_dtype)
    context.clear()
    assert (context.used_bytes, context.ids) == (0, [])


@pytest.mark.parametrize("variant", ["phi3-long-window", "phi3-window", "phi3-long"])
@torch.inference_mode()
def test_a_model_that_raises_in_a_later_step(tiny: Tiny, variant, monkeypatch):
    """Catches a window that is trimmed to where it began, past which it has moved meanwhile: an assertion would hide
    the error, and the ids would say that keys are there which aren't."""
    built = build(tiny.safetensors(variant).path)
    context, ids = built.context(700), IDS * 11
    context.reuse(ids)
    context.forward(ids[:100])
    real, steps = built.model.states, []

    def failing(*arguments, **more):
        steps.append(real(*arguments, **more))
        if len(steps) == 2:
            raise MemoryError
        return steps[-1]

    with monkeypatch.context() as patch:
        patch.setattr(built.model, "states", failing)
        with pytest.raises(MemoryError):
            context.forward(ids[100:660])
    assert {cache.length for cache in context.caches} == {len(context.ids)}
    assert reply(context, ids[:650], 4)[0] == reply(built.context(700), ids[:650], 4)[0]


@torch.inference_mode()
def test_a_change_of_angles_gives_the_new_logits_alone(tiny: Tiny, monkeypatch):
    """Where a sequence is computed afresh, catches logits of all of it: of a long one they are gigabytes."""
    monkeypatch.setattr("tinychat.engine.context.STEP", 4)
    built = build(tiny.safetensors("phi3-long").path)  # whose angles change past 16
    context, whole = built.context(), built.context()
    context.forward(IDS[:14])
    real, rows = built.model.states, []

    def counting(*arguments, **more):
        rows.append(real(*arguments, **more))
        return rows[-1]

    with monkeypatch.context() as patch:
        patch.setattr(built.model, "states", counting)
        logits = context.verify(IDS[14:19])
    assert [len(part) for part in rows] == [1, 1, 1, 4, 3]
    torch.testing.assert_close(logits, whole.verify(IDS[:19])[14:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["phi3-window", "phi3-long"])
@torch.inference_mode()
def test_of_two_versions_the_one_that_can_go_on(tiny: Tiny, variant):
    """Catches a prompt computed afresh since the older of two kept versions is of no use, by its window or its angles:
    the other one begins with it, too."""
    context, prompt = build(tiny.safetensors(variant).path).context(400), IDS[:12]
    for version, length in ((IDS, 150), (IDS[::-1], 3), ([7, 8, 9], 1)):  # the last is another conversation
        begun = prompt if version != [7, 8, 9] else version
        held = context.reuse(begun)
        context.forward(begun[held:])
        for token in (version * 3)[:length]:
            context.forward([token])
    assert (context.reuse(prompt), context.recomputed) == (11, "")
