"""Speculation beside plain decoding: the same ids for the same seed, the same caches, whatever is guessed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from rulers import KERNELS, Built, build, card
from tiny import Tiny

from tinychat.engine import speculation
from tinychat.engine.context import Context
from tinychat.engine.generation import Prefilled, generate
from tinychat.engine.opening import open_model
from tinychat.engine.sampling import Choice
from tinychat.engine.speculation import LONGEST, DraftModel, PromptLookup, Speculation
from tinychat.errors import TinychatError
from tinychat.protocol import SamplerSettings

GREEDY = SamplerSettings(temperature=0.0)
CHAINS = {
    "greedy": GREEDY,
    "greedy with penalties": SamplerSettings(temperature=0.0, repetition_penalty=1.4, frequency_penalty=0.3),
    "hot": SamplerSettings(temperature=1.3, top_k=0, top_p=1.0),
    "everything": SamplerSettings(
        temperature=0.9, top_k=30, top_p=0.9, min_p=0.02, repetition_penalty=1.2, frequency_penalty=0.2,
        presence_penalty=-0.4, logit_bias=((5, 3.0), (6, float("-inf"))),
    ),
    "llama.cpp": SamplerSettings(temperature=0.7, top_p=0.8, order="llama.cpp"),
}  # fmt: skip
REACHES = range(1, 9)
IDS = torch.randint(3, 320, (60,), generator=torch.Generator().manual_seed(8)).tolist()


class Oracle:
    """Guesses the ids it was told; of those at the places in `wrong`, others."""

    NAME = "oracle"

    def __init__(self, ids: Sequence[int], wrong: Sequence[int] = ()) -> None:
        self._ids = [(token + 1) % 320 if at in wrong else token for at, token in enumerate(ids)]

    def propose(self, ids: Sequence[int], count: int) -> list[int]:
        return self._ids[len(ids) : len(ids) + count]


class Eager(Speculation):
    """Guesses at every step as far as it is allowed, whatever came of it before."""

    def _plan(self) -> None:
        pass


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def built(request, tiny: Tiny) -> Built:
    return build(tiny.safetensors(request.param).path)


@pytest.fixture(scope="module", params=KERNELS, ids=lambda kernels: kernels.NAME)
def either(request, tiny: Tiny) -> Built:
    """A Llama whose steps of one row and of several take different kernels, and one where they don't."""
    return build(tiny.safetensors("llama").path, kernels=request.param)


def run(
    context: Context, prompt: Sequence[int], count: int, settings: SamplerSettings, **more
) -> tuple[list[Choice], list[int]]:
    """Return the first `count` choices of a reply and what the caches then hold."""
    steps = generate(context, prompt, settings, **{"seed": 1, "detail": "basic"} | more)
    made = []
    for step in steps:
        if isinstance(step, Choice):
            made.append(step)
            if len(made) == count:
                break
    steps.close()
    assert {cache.length for cache in context.caches} == {len(context.ids)}
    return made, list(context.ids)


def ids_of(choices: Sequence[Choice]) -> list[int]:
    return [choice.token_id for choice in choices]


def assert_same(guessed: tuple[list[Choice], list[int]], plain: tuple[list[Choice], list[int]]) -> None:
    """The same tokens and caches, and what is reported of each token but for rounding."""
    assert ids_of(guessed[0]) == ids_of(plain[0])
    assert guessed[1] == plain[1]
    for one, other in zip(guessed[0], plain[0], strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert one.entropy == pytest.approx(other.entropy, abs=1e-3)


# ---------------------------------------------------------------------------------------------------------------------
# Equal to plain decoding


@pytest.mark.parametrize("chain", ["greedy with penalties", "everything"])
@pytest.mark.parametrize("reach", REACHES)
def test_every_guess_right(either, chain, reach):
    """All are accepted but the first token of each pass, at any reach: catches a bonus row read twice or skipped, a
    draw too few, penalties that lack the guessed tokens before."""
    settings = CHAINS[chain]
    plain = run(either.context(), IDS[:20], 30, settings)
    eager = Eager(Oracle([*IDS[:20], *ids_of(plain[0]), *[0] * 9]))
    context = either.context()
    guessed = run(context, IDS[:20], 30, replace(settings, speculate=reach), speculation=eager)
    assert_same(guessed, plain)
    accepted = [choice.accepted for choice in guessed[0]]
    assert accepted == [index % (reach + 1) != 0 for index in range(30)]
    assert eager.drafted == eager.accepted == sum(accepted)


@pytest.mark.parametrize("chain", ["everything"])
@pytest.mark.parametrize("reach", REACHES)
def test_every_guess_wrong(either, chain, reach):
    """None is accepted: catches caches that keep a refused token, and a draw spent on one."""
    settings = CHAINS[chain]
    plain = run(either.context(), IDS[:20], 30, settings)
    eager = Eager(Oracle([*IDS[:20], *ids_of(plain[0]), *[0] * 9], wrong=range(99)))
    guessed = run(either.context(), IDS[:20], 30, replace(settings, speculate=reach), speculation=eager)
    assert_same(guessed, plain)
    assert not any(choice.accepted for choice in guessed[0])
    assert eager.accepted == 0
    assert eager.drafted == 29 * reach


@examples(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    prompt=st.lists(st.integers(3, 319), min_size=1, max_size=20),
    reach=st.integers(1, 8),
    wrong=st.sets(st.integers(0, 60), max_size=30),
    chain=st.sampled_from(sorted(CHAINS)),
    count=st.integers(1, 30),
)
def test_any_guesses(built, seed, prompt, reach, wrong, chain, count):
    """Right and wrong ones in any order, stopped after any token: ids and caches as without, and these go on as
    cold ones do."""
    settings = CHAINS[chain]
    plain = run(built.context(64), prompt, count, settings, seed=seed)
    # Guesses beyond what plain decoding was asked for, so that the reply stops in the middle of accepted ones.
    longer = run(built.context(64), prompt, count + 9, settings, seed=seed)
    oracle = Oracle([*prompt, *ids_of(longer[0])], sorted(wrong))
    context = built.context(64)
    assert_same(
        run(context, prompt, count, replace(settings, speculate=reach), seed=seed, speculation=Eager(oracle)), plain
    )
    assert_same(run(context, prompt, 3, GREEDY), run(built.context(64), prompt, 3, GREEDY))


@examples(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    prompt=st.lists(st.integers(3, 8), min_size=1, max_size=30),
    reach=st.integers(1, 8),
    chain=st.sampled_from(sorted(CHAINS)),
)
def test_prompt_lookup(built, seed, prompt, reach, chain):
    """The real proposer, on conversations of few words, where it finds a lot."""
    settings = replace(CHAINS[chain], logit_bias=tuple((token, 8.0) for token in range(3, 9)))
    plain = run(built.context(), prompt, 40, settings, seed=seed)
    assert_same(run(built.context(), prompt, 40, replace(settings, speculate=reach), seed=seed), plain)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("same", [True, False], ids=["same model", "other model"])
def test_draft_model(tiny: Tiny, built, chain, same):
    """A draft model that always agrees with greedy decoding, and one that rarely does."""
    other = built if same else build(tiny.safetensors("llama-untied", seed=5).path)
    settings = CHAINS[chain]
    plain = run(built.context(), IDS[:20], 30, settings)
    eager = Eager(DraftModel(other.context(), 320))
    guessed = run(built.context(), IDS[:20], 30, replace(settings, speculate=4), speculation=eager)
    assert_same(guessed, plain)
    if same and chain == "greedy":
        assert eager.accepted == eager.drafted == 24


def test_settings_that_change_in_mid_run(built):
    """They act on the very next token, though its logits were computed before: the guess after it is refused, and the
    rest of the reply is that of plain decoding told the same."""
    other = SamplerSettings(temperature=0.0, logit_bias=((77, 1e6),))

    def told(settings: SamplerSettings, eager: Speculation | None, after: int) -> list[int]:
        steps = generate(built.context(), IDS[:20], settings, seed=1, speculation=eager)
        made = []
        step = next(steps)
        while len(made) < 20:
            change = None
            if isinstance(step, Choice):
                made.append(step.token_id)
                change = {after: replace(other, speculate=settings.speculate), after + 2: settings}.get(len(made))
            step = steps.send(change)
        return made

    plain = ids_of(run(built.context(), IDS[:20], 20, GREEDY)[0])
    for after in range(1, 12):
        expected = told(GREEDY, None, after)
        assert expected[after : after + 2] == [77, 77]
        assert told(replace(GREEDY, speculate=8), Eager(Oracle([*IDS[:20], *plain])), after) == expected


@pytest.mark.parametrize("on", [True, False])
def test_switching_in_mid_reply(built, on):
    """On: the next token may be guessed. Off: what was checked already is used up, and nothing more is drafted."""
    plain = ids_of(run(built.context(), IDS[:20], 24, GREEDY)[0])
    eager = Eager(Oracle([*IDS[:20], *plain, *[0] * 9]))
    first, then = (GREEDY, replace(GREEDY, speculate=4)) if on else (replace(GREEDY, speculate=4), GREEDY)
    steps = generate(built.context(), IDS[:20], first, seed=1, speculation=eager)
    made = [step for step in (next(steps) for _ in range(9)) if isinstance(step, Choice)]
    made.append(steps.send(then))
    made += [next(steps) for _ in range(24 - len(made))]
    assert ids_of(made) == plain
    accepted = [choice.accepted for choice in made]
    assert any(accepted[:7]) != on
    assert any(accepted[12:]) == on


def test_forced_ids(built):
    """What is dictated is not guessed, nor the token after it, whose logits come with it; the rest is as without."""
    settings = CHAINS["everything"]
    forced = [300, 10, 319, 10, 300]
    plain = run(built.context(), IDS[:20], 25, settings, forced=forced)
    eager = Eager(Oracle([*IDS[:20], *ids_of(plain[0]), *[0] * 9]))
    guessed = run(built.context(), IDS[:20], 25, replace(settings, speculate=3), forced=forced, speculation=eager)
    assert_same(guessed, plain)
    assert not any(choice.accepted for choice in guessed[0][:6])
    assert guessed[0][6].accepted


@pytest.mark.parametrize("prompt", [1, 50, 59, 60, 61, 62, 63])
@pytest.mark.parametrize("reach", [1, 5, 8])
def test_the_end_of_the_context(built, prompt, reach):
    """Guesses never run over it, and the last token comes as without."""
    ids = (IDS * 2)[:prompt]
    plain = run(built.context(64), ids, 99, GREEDY)
    assert len(plain[0]) == 64 - prompt
    oracle = Eager(Oracle([*ids, *ids_of(plain[0]), *[0] * 9]))
    assert_same(run(built.context(64), ids, 99, replace(GREEDY, speculate=reach), speculation=oracle), plain)


def test_an_error_in_a_pass(built, monkeypatch):
    """The caches are as before the pass, and what was said stays."""
    plain = run(built.context(), IDS[:20], 7, GREEDY)
    context = built.context()
    real = Context.verify
    calls = 0

    def failing(self: Context, *given: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            monkeypatch.setattr(type(context.caches[1]), "append_attend", broken)
        return real(self, *given)

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("injected")

    monkeypatch.setattr(Context, "verify", failing)
    oracle = Eager(Oracle([*IDS[:20], *ids_of(plain[0]), *[0] * 9]))
    with pytest.raises(RuntimeError, match="injected"):
        run(context, IDS[:20], 20, replace(GREEDY, speculate=2), speculation=oracle)
    assert context.ids == [*IDS[:20], *ids_of(plain[0])[:3]]
    assert {cache.length for cache in context.caches} == {23}


def test_numbers_that_are_none_after_a_refused_guess(built, monkeypatch):
    """Rows that nobody uses don't matter; one that is used ends the reply at its own token."""
    plain = run(built.context(), IDS[:20], 12, GREEDY)
    real = Context.verify

    def poisoned(self: Context, *given: Any) -> torch.Tensor:
        rows = real(self, *given)
        rows[-1] = float("nan")
        return rows

    monkeypatch.setattr(Context, "verify", poisoned)
    settings = replace(GREEDY, speculate=2)
    wrong = Eager(Oracle([*IDS[:20], *ids_of(plain[0]), *[0] * 9], wrong=range(99)))
    assert_same(run(built.context(), IDS[:20], 12, settings, speculation=wrong), plain)
    context = built.context()
    steps = generate(context, IDS[:20], settings, seed=1, speculation=Eager(Oracle([*IDS[:20], *ids_of(plain[0])])))
    made = []
    with pytest.raises(TinychatError, match="stopped being finite"):
        made += [step.token_id for step in steps if not isinstance(step, Prefilled) and made.append(step.token_id)]
    assert made == ids_of(plain[0])[:3]
    assert context.ids == []


# ---------------------------------------------------------------------------------------------------------------------
# Guessing


@pytest.mark.parametrize(
    ("ids", "guess"),
    [
        ([], []), ([1], []), ([1, 2], []), ([1, 1], [1]), ([1, 2, 1], [2, 1]), ([1, 2, 3, 1, 2], [3, 1, 2]),
        ([1, 2, 9, 5, 2, 8, 1, 2], [9, 5, 2]),  # a longer stretch beats a later one
        ([1, 2, 9, 1, 2, 8, 1, 2], [8, 1, 2]),  # of equal ones, the latest
        ([4, 1, 2, 9, 3, 1, 2, 8, 4, 1, 2], [9, 3, 1]),
        ([4, 6, 1, 2, 3, 9, 5, 6, 1, 2, 3, 8, 4, 6, 1, 2, 3], [9, 5, 6]),  # the latest agrees less far back
    ],
)  # fmt: skip
def test_what_is_looked_up(ids, guess):
    """By hand; three at most."""
    assert PromptLookup().propose(ids, 3) == guess


@given(ids=st.lists(st.integers(0, 2), max_size=60), cuts=st.lists(st.integers(1, 60), max_size=8))
def test_the_index_grows_with_the_reply(ids, cuts):
    """Asked along the way or only in the end, it finds what a search through everything finds."""
    lookup = PromptLookup()
    for cut in [*sorted(cuts), len(ids)]:
        found = lookup.propose(ids[:cut], 4)
        part = ids[:cut]
        expected: list[int] = []
        for length in range(min(LONGEST, len(part)), 0, -1):
            ends = [end for end in range(length, len(part)) if part[end - length : end] == part[-length:]]
            if ends:

                def agreeing(end: int, part: list[int] = part) -> int:
                    pairs = zip(reversed(part[:end]), reversed(part), strict=False)
                    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))

                best = max(reversed(ends[-16:]), key=agreeing)
                expected = part[best : best + 4]
                break
        assert found == expected


def test_a_draft_model_reads_a_long_prompt_by_chunks(built, monkeypatch):
    """It guesses nothing until it has read everything, and never computes more than a chunk at once."""
    monkeypatch.setattr(speculation, "_CHUNK", 16)
    context = built.context()
    draft = DraftModel(context, 320)
    with torch.inference_mode():
        for read in (16, 32):
            assert draft.propose(IDS[:40], 3) == []
            assert context.ids == IDS[:read]
        assert len(draft.propose(IDS[:40], 3)) == 3
        assert context.ids[:40] == IDS[:40]


def test_a_draft_model_at_its_end(built):
    """Catches a guess beyond its context, and ids that the large model doesn't know."""
    draft = DraftModel(built.context(30), 320)
    with torch.inference_mode():
        assert len(draft.propose(IDS[:20], 8)) == 8
        assert len(draft.propose(IDS[:27], 8)) == 3
        assert draft.propose(IDS[:30], 8) == []
        assert draft.propose(IDS[:40], 8) == []
        assert DraftModel(built.context(30), 1).propose(IDS[:20], 8) == []


def test_it_waits_where_nothing_is_accepted():
    """A pass in 32 in the end; one success, and it guesses at every step again."""
    planned = Speculation(Oracle([9] * 500))
    guessed = [bool(planned.draft([0] * n, 8)) and not planned.judge(1) for n in range(130)]
    assert [n for n, at in enumerate(guessed) if at] == [0, 2, 6, 14, 30, 62, 94, 126]
    while not planned.draft([0] * 200, 8):
        pass
    assert planned.judge(9)
    assert not planned.judge(1)
    assert planned.draft([0] * 300, 8) == [9, 9], "twice what was accepted"
    assert [planned.judge(9), planned.judge(9)] == [True, True]
    assert len(planned.draft([0] * 300, 8)) == 4
    assert planned.accepted == 3
    assert planned.drafted == 8 + 7 * 2 + 2 + 2


@pytest.mark.parametrize("variant", ["phi3-long", "phi3-long-window", "llama-dynamic"])
@pytest.mark.parametrize("reach", [1, 3, 8])
def test_guesses_end_where_the_angles_change(tiny: Tiny, variant, reach):
    """Catches a token whose logits come of the longer sequence that its guesses would make: past the original length
    all positions turn by other angles, and a guess that is refused would have changed the token before it."""
    built = build(tiny.safetensors(variant).path)
    original = next(iter(built.context().sequence.rotaries)).rope
    passed = getattr(original, "original", None) or original.trained
    for prompt in (passed - 9, passed - 4, passed - 1, passed):
        plainly, held = run(built.context(), IDS[:prompt], 12, CHAINS["hot"])
        expected = [*IDS[:prompt], *(choice.token_id for choice in plainly)]
        for wrong in ((), range(passed, passed + 20), range(0, 100, 2)):
            guessing = Eager(Oracle(expected, wrong))
            settings = replace(CHAINS["hot"], speculate=reach)
            made, kept = run(built.context(), IDS[:prompt], 12, settings, speculation=guessing)
            assert [choice.token_id for choice in made] == [choice.token_id for choice in plainly]
            assert [choice.logprob for choice in made] == pytest.approx([c.logprob for c in plainly], abs=1e-3)
            assert kept == held


# ---------------------------------------------------------------------------------------------------------------------
# The real model

SAID = "Anna keeps a lighthouse on a small island. Every evening she climbs the steps and lights the old lamp.\n\n"
QUOTING = f"{SAID}{SAID}Anna keeps"


@pytest.mark.model
def test_the_real_model_quotes(smollm2_path):
    """Catches what tiny models don't show: in fp32, greedy and with a seed, guesses from a real text change no id."""
    opened = open_model(smollm2_path, card(smollm2_path))
    opened.checkpoint.close()
    prompt = opened.tokenizer.encode(QUOTING)
    context = build(smollm2_path, kernels=KERNELS[-1]).context(256)
    for settings in (GREEDY, SamplerSettings(temperature=0.8, top_k=40, top_p=0.95)):
        plain = run(context, prompt, 28, settings)
        context.clear()
        lookup = Speculation(PromptLookup())
        assert_same(run(context, prompt, 28, replace(settings, speculate=7), speculation=lookup), plain)
        context.clear()
        assert 10 <= lookup.accepted < lookup.drafted, "it did quote, and went on otherwise"
