"""A recorded chat with a tiny model, made again: the recorded ids, or where it is no longer them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from driven import DEADLINE, Driven, driven, load_command
from tiny import Tiny

from tinychat.engine.beneath import Beneath, other_model
from tinychat.engine.recorded import Recording, read
from tinychat.engine.recording import RecordedEngine
from tinychat.engine.replaying import ReplayEngine
from tinychat.engine.rerun import Difference, RecordedReply, replies, rerun
from tinychat.engine.thread import LocalEngine
from tinychat.protocol import (
    Cancel,
    DescribePrompt,
    Event,
    Explain,
    Explained,
    Generate,
    MapCache,
    Message,
    ModelReady,
    Notice,
    Pace,
    Paused,
    PromptDescribed,
    Replayed,
    SamplerSettings,
    SetSampler,
    TokenEmitted,
    TurnFinished,
)

WARM = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0)


class Recorded(Driven):
    """A driven engine whose chat is recorded."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.local = self.engine
        self.engine = RecordedEngine(self.local, path)  # type: ignore[assignment]
        self.send = self.engine.send


@pytest.fixture(scope="module")
def recording(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A question; another one, with a slider moved twice in its reply; a branch off it; one that was stopped."""
    path = tmp_path_factory.mktemp("recorded") / "chat.jsonl"
    engine = Recorded(path)
    engine.load(tiny.gguf("llama", "Q4_1").path, model={"name": "smollm2"})
    first = engine.reply("What is", turn_id=2, count=8, sampler=WARM)
    history = (Message("user", "What is"), Message("assistant", first.text, first.ids, vocabulary(engine)))
    messages = (*history, Message("user", "And then?"))
    engine.say(turn_id=4, count=14, sampler=replace(WARM, seed=11), messages=messages, pace=Pace("pause"))
    for index, top_k in ((0, None), (5, 2), (9, 40)):
        if top_k is not None:
            for _ in range(index - engine.of(Paused)[-1].index):
                engine.send(Pace("step"))
                engine.wait(Paused, index=engine.of(Paused)[-1].index + 1)
            engine.send(SetSampler(replace(WARM, top_k=top_k, repetition_penalty=1.3)))
        else:
            engine.wait(Paused, index=0)
    engine.send(Pace("play"))
    engine.wait(TurnFinished, turn_id=4)
    ids = engine.tokens(4)
    forced = (*ids[:6], (ids[6] + 1) % 300)
    engine.reply(turn_id=5, count=12, sampler=WARM, messages=messages, forced_ids=forced, branch_of=4)
    engine.say(turn_id=7, count=9, sampler=WARM, messages=messages, pace=Pace("pause"))
    for index in range(3):
        engine.wait(Paused, turn_id=7, index=index)
        engine.send(Pace("step"))
    engine.wait(Paused, turn_id=7, index=3)
    engine.send(Cancel(turn_id=7))
    engine.wait(TurnFinished, turn_id=7)
    engine.engine.close(DEADLINE)
    return read(path)


def vocabulary(engine: Driven) -> str:
    return engine.of(ModelReady)[0].info.vocabulary


@pytest.fixture
def again(tiny: Tiny) -> Iterator[Driven]:
    with driven() as engine:
        engine.load(tiny.gguf("llama", "Q4_1").path)
        yield engine


def differences(engine: Driven, made: list[RecordedReply]) -> list[Difference | None]:
    return [engine.engine.call(partial(rerun, recorded=reply)) for reply in made]


def test_made_again_it_is_the_recorded_ids(recording: Recording, again: Driven) -> None:
    """Would catch: a setting that takes hold a token early or late, a seed that is drawn anew, a stopped reply that
    goes on, a branch that begins elsewhere.
    """
    made = replies(recording.entries)
    assert [len(reply.tokens) for reply in made] == [8, 14, 12, 3]
    assert [[used.index for used in reply.used] for reply in made] == [[0], [0, 5, 9], [0], [0]]
    assert differences(again, made) == [None] * 4


def test_the_slider_matters(recording: Recording, again: Driven) -> None:
    """Would catch: a comparison that is equal whatever is made: the same reply with a move left out, or moved."""
    reply = replies(recording.entries)[1]
    assert differences(again, [replace(reply, used=reply.used[:1])]) != [None]
    moved = [replace(reply.used[1], index=2)]
    assert differences(again, [replace(reply, used=[reply.used[0], *moved])]) != [None]


def test_the_first_other_token_is_named(recording: Recording, again: Driven) -> None:
    """Would catch: a difference without its place, or without what both say of it."""
    first = replies(recording.entries)[0]
    then = first.tokens[3]
    other = (then.token_id + 1) % 300
    forged = [*first.tokens[:3], replace(then, token_id=other, piece=b"\xff"), *first.tokens[4:]]
    (found,) = differences(again, [replace(first, tokens=forged)])
    assert found is not None
    assert found.where == "token 4 of 8"
    assert f"({other}), now it is" in found.what
    assert f"({then.token_id})" in found.what
    assert "%" in found.what
    assert f"The draw is {then.draw:.6f}" in found.what
    drawn = [replace(first.tokens[0], draw=0.123), *first.tokens[1:]]
    (found,) = differences(again, [replace(first, tokens=drawn)])
    assert found is not None
    assert "by another draw: 0.123" in found.what
    (found,) = differences(again, [replace(first, prompt=(*first.prompt[:2], 1, *first.prompt[3:]))])
    assert found is not None
    assert found.where == "the prompt"
    assert "is at 2: 1, now" in found.what
    assert first.finished is not None
    ends = replace(first.finished, ids=(1,), reason="length")
    (found,) = differences(again, [replace(first, finished=ends)])
    assert found is not None
    assert found.where == "the end"


def test_another_model_is_named(tiny: Tiny, recording: Recording) -> None:
    """Would catch: another file, or other forms of the weights, that pass for the recorded one."""
    then = next(entry.said for entry in recording.entries if isinstance(entry.said, ModelReady))
    assert other_model(then, then) == ""
    info = replace(then.info, fingerprint="ab" * 32, name="other")
    sentence = other_model(then, replace(then, info=info))
    assert f"smollm2 (file {then.info.fingerprint[:12]})" in sentence
    assert "other (file abababababab)" in sentence
    assert "dense, head" not in sentence
    info = replace(then.info, dtype="fp32", kernel="torch")
    assert "this is fp32" in other_model(then, replace(then, info=info))


def test_a_model_beneath_answers_what_nobody_asked(tiny: Tiny, recording: Recording) -> None:
    """Would catch: numbers of another reply than the recorded one, or that pass for recorded; draws that are lost."""
    load = load_command(tiny.gguf("llama", "Q4_1").path)
    beneath = Beneath(LocalEngine(), load, recording.entries)
    events = []

    def until(kind: type, count: int = 1) -> list:
        end = time.monotonic() + DEADLINE
        while sum(isinstance(event, kind) for event in events) < count:
            assert time.monotonic() < end, events
            events.extend(beneath.poll(0.01))
        return [event for event in events if isinstance(event, kind)]

    try:
        assert "no model" in beneath.ask(Explain(1, 4, 3))
        beneath.load()
        until(ModelReady)
        asked = {entry.said.turn_id: entry.said for entry in recording.entries if isinstance(entry.said, Generate)}
        beneath.follow(asked[4])
        for index in (0, 6, 10):
            assert beneath.ask(Explain(index, 4, index)) == ""
        assert beneath.ask(DescribePrompt(50, 4)) == ""
        assert beneath.ask(MapCache(51))
        answers = until(Explained, 3)
        tokens = [entry.said for entry in recording.entries if isinstance(entry.said, TokenEmitted)]
        tokens = [token for token in tokens if token.turn_id == 4]
        for answer in answers:
            token = tokens[answer.index]
            assert answer.problem == ""
            assert answer.recomputed
            assert not answer.forced
            assert answer.chosen == token.token_id
            assert answer.draw == token.draw
            low, high = next(c.interval for c in answer.candidates if c.token_id == token.token_id)
            assert low - 1e-3 <= token.draw < high + 1e-3
        assert [answer.sampler.top_k for answer in answers] == [0, 2, 40]
        assert not until(PromptDescribed)[0].problem
        assert not [event for event in events if isinstance(event, Notice)]
    finally:
        assert beneath.close(DEADLINE)


def test_a_model_of_another_vocabulary_stays_out_of_it(tiny: Tiny, recording: Recording) -> None:
    """Would catch: ids that are fed to a model in which they mean something else."""

    beneath = Beneath(LocalEngine(), load_command(tiny.safetensors("gpt2").path), recording.entries)
    try:
        then = next(entry.said for entry in recording.entries if isinstance(entry.said, ModelReady))
        other = replace(then, info=replace(then.info, vocabulary="another"))
        (told,) = beneath._compared(other)
        assert "has another vocabulary" in told.text
        assert beneath.ask(Explain(1, 4, 3))
    finally:
        assert beneath.close(DEADLINE)


def test_a_screen_that_plays_with_a_model_gets_both(tiny: Tiny, recording: Recording) -> None:
    """Would catch: answers of the model under the recording's numbers, a reply that waits for the model beneath, a
    question that is asked too early and lost.
    """
    load = load_command(tiny.gguf("llama", "Q4_1").path)
    now = iter(range(10**6))
    engine = ReplayEngine(recording, Beneath(LocalEngine(), load, recording.entries), clock=lambda: float(next(now)))
    events: list[Event] = []
    turns: dict[int, int] = {}
    try:
        engine.send(load)
        end = time.monotonic() + DEADLINE
        while sum(isinstance(event, Explained) for event in events) < 4:
            assert time.monotonic() < end, events[-3:]
            for event in engine.poll(0.001):
                events.append(event)
                if isinstance(event, Replayed) and isinstance(event.command, Generate):
                    turn = 100 + len(turns)
                    turns[turn] = event.command.turn_id
                    engine.send(Generate(turn, ()))
                elif isinstance(event, TurnFinished):
                    engine.send(Explain(event.turn_id, event.turn_id, 2))
        answers = [event for event in events if isinstance(event, Explained)]
        tokens = [event for event in events if isinstance(event, TokenEmitted) and event.index == 2]
        assert [answer.turn_id for answer in answers] == [token.turn_id for token in tokens] == [100, 101, 102, 103]
        assert [answer.chosen for answer in answers] == [token.token_id for token in tokens]
        assert all(answer.recomputed and not answer.problem for answer in answers)
        assert [answer.forced for answer in answers] == [False, False, True, False], "the third is a branch"
        assert not [event.text for event in events if isinstance(event, Notice) and "ends here" not in event.text]
    finally:
        assert engine.close(DEADLINE)
