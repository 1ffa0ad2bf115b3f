"""The engine that plays a recording: what it gives, when, and what it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from tinychat.engine.recorded import Entry, Recording
from tinychat.engine.recorded_answers import ANSWERS, RecordedAnswers, unanswered
from tinychat.engine.replaying import ReplayEngine
from tinychat.protocol import (
    CacheMapped,
    Cancel,
    Command,
    EngineFailed,
    Event,
    Explain,
    Explained,
    Generate,
    Inspect,
    MapCache,
    Message,
    Notice,
    Pace,
    Paused,
    PrefillProgress,
    Probed,
    Replayed,
    SamplerSettings,
    SetSampler,
    TokenEmitted,
    Tokenize,
    Tokenized,
    TurnFinished,
)
from tinychat.protocol import LoadModel as Load

LOAD = Load(9, None)  # type: ignore[arg-type]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def token(index: int, turn: int = 4, seconds: float = 0.2) -> TokenEmitted:
    return TokenEmitted(turn, index, 50 + index, b" w", " w", seconds=seconds, draw=0.5)


def finished(turn: int = 4, count: int = 3) -> TurnFinished:
    return TurnFinished(turn, "eos", (50,) * count, " w" * count, "", 5, 0, count, 0.1, 0.4, 0.1, 7, "numba")


ASKED = Generate(4, (Message("user", "Hi"),))
REPLY = [
    (10.0, ASKED),
    (10.5, PrefillProgress(4, 5, 5, 0)),
    (10.6, token(0)),
    (10.6, token(1)),
    (10.61, SetSampler(SamplerSettings(top_k=7))),
    (10.9, token(2)),
    (10.9, finished()),
]


class Player:
    """A recording, a clock and a screen's hands."""

    def __init__(self, *entries: tuple[float, Any], problem: str = "") -> None:
        self.clock = Clock()
        kept = tuple(Entry(at, said) for at, said in entries)
        self.engine = ReplayEngine(Recording(Path("a.jsonl"), kept, "0.1.0", "", problem), clock=self.clock)
        self.engine.send(LOAD)

    def after(self, seconds: float) -> list[Event]:
        self.clock.now += seconds
        return self.engine.poll()

    def ask(self, turn: int = 2, **more: Any) -> None:
        self.engine.send(Generate(turn, (), **more))


def test_tokens_come_at_their_own_speed_under_the_screen_s_number() -> None:
    """Would catch: a recording that is over at once, or that tells of turns the screen doesn't have."""
    player = Player(*REPLY)
    assert player.after(0) == [Replayed(ASKED)]
    assert player.after(9) == [], "the screen has not asked yet"
    player.ask()
    assert player.after(0.4) == []
    assert player.after(0.15) == [PrefillProgress(2, 5, 5, 0)]
    assert player.after(0.11) == [token(0, 2)]
    assert player.after(0.1) == []
    assert player.after(0.11) == [token(1, 2), Replayed(SetSampler(SamplerSettings(top_k=7)))]
    *_, last, end = player.after(0.2)
    assert last == finished(2)
    assert isinstance(end, Notice)
    assert "ends here" in end.text
    assert player.after(9) == []


def test_a_slow_screen_gets_all_of_it_in_order() -> None:
    """Would catch: tokens that are dropped, or lateness that adds up."""
    player = Player(*REPLY)
    player.after(1)
    player.ask()
    events = [event for _ in range(10) for event in player.after(0.45)]
    tokens = [event.index for event in events if isinstance(event, TokenEmitted)]
    assert tokens == [0, 1, 2]
    assert finished(2) in events


def test_it_pauses_steps_and_keeps_a_rate() -> None:
    """Would catch: pacing keys that a recording doesn't obey."""
    player = Player(*REPLY)
    player.after(1)
    player.ask(pace=Pace("pause"))
    assert player.after(5) == [PrefillProgress(2, 5, 5, 0), Paused(2, 0)]
    assert player.after(5) == []
    player.engine.send(Pace("step"))
    assert player.after(0) == [token(0, 2), Paused(2, 1)], "at once"
    player.engine.send(Pace("play", 1.0))
    assert player.after(0.1)[0] == token(1, 2)
    assert player.after(0.5) == [], "one a second, though it were two then"
    assert player.after(0.6)[0] == token(2, 2)


def test_stopping_shows_the_rest_and_waits() -> None:
    """Would catch: a reply that a replay cuts shorter than it was, or that says it was cancelled."""
    again = Generate(6, (Message("user", "Hi"),))
    player = Player(*REPLY, (20.0, again), (20.1, token(0, 6)), (20.2, finished(6, 1)))
    player.after(1)
    player.ask()
    player.after(0.7)
    player.engine.send(Cancel(turn_id=2))
    rest = player.after(0)
    assert rest[-2:] == [finished(2), Paused(0, 0)]
    assert player.after(5) == []
    player.engine.send(Pace("play"))
    assert player.after(1) == [Replayed(again)]


def test_nobody_can_add_to_it() -> None:
    """Would catch: a question that hangs since a recording never answers it."""
    player = Player(*REPLY)
    player.ask(turn=8)
    (failed,) = [event for event in player.after(0) if isinstance(event, EngineFailed)]
    assert failed.turn_id == 8
    assert "This is a recording" in failed.summary


def test_a_reply_that_breaks_off_ends() -> None:
    """Would catch: a screen that waits for ever for the end of a reply whose program was killed."""
    player = Player(*REPLY[:4], problem="It breaks off.")
    assert player.after(1) == [Notice("It breaks off."), Replayed(ASKED)]
    player.ask()
    events = player.after(3) + player.after(3) + player.after(3)
    assert [type(event) for event in events] == [PrefillProgress, TokenEmitted, TokenEmitted, EngineFailed, Notice]
    assert events[3].turn_id == 2


def test_questions_get_the_answers_of_then() -> None:
    """Would catch: an answer about another token, of another turn, or to a question that nobody asked then."""
    said = Explained(3, 4, 1, chosen=51, draw=0.5)
    probe = Probed(4, 2, request_id=None)
    asked = (10.95, Explain(3, 4, 1)), (10.96, said), (10.97, probe)
    player = Player(*REPLY, *asked)
    player.after(1)
    player.ask()
    for _ in range(9):
        player.after(1)
    player.engine.send(Explain(70, 2, 1))
    assert player.after(0) == [Explained(70, 2, 1, chosen=51, draw=0.5)]
    player.engine.send(Inspect(71, 2, 2))
    assert player.after(0) == [Probed(2, 2, request_id=71)]
    for other in (Explain(72, 2, 0), Explain(72, 2, 1, SamplerSettings(top_k=1)), Explain(72, 99, 1)):
        player.engine.send(other)
        (answer,) = player.after(0)
        assert isinstance(answer, Explained)
        assert answer.request_id == 72
        assert answer.turn_id == other.turn_id
        assert "Nobody looked at this" in answer.problem
        assert "--model" in answer.problem


def test_what_is_still_to_come_is_not_told() -> None:
    """Would catch: a view that shows which token will be said, before it is."""
    player = Player(*REPLY, (11.0, Explain(3, 4, 1)), (11.0, Explained(3, 4, 1, chosen=51, draw=0.5)))
    player.after(1)
    player.ask(pace=Pace("pause"))
    player.after(1)
    player.engine.send(Pace("step"))
    player.after(1)
    player.engine.send(Explain(70, 2, 1))
    (answer,) = [event for event in player.after(0) if isinstance(event, Explained)]
    assert (answer.chosen, answer.draw, answer.problem) == (None, None, "")


def test_a_map_of_the_cache_is_that_of_now_or_none() -> None:
    """Would catch: the cache of a minute ago shown as that of now."""
    entries = [Entry(at, said) for at, said in [*REPLY, (11.0, MapCache(1)), (11.1, CacheMapped(1, 8))]]
    later = [*entries, Entry(20.0, Generate(6, ())), Entry(21.0, token(0, 6))]
    answers = RecordedAnswers(later)
    assert answers.find(MapCache(5, 77), len(entries)) == CacheMapped(5, 8)
    assert answers.find(MapCache(5), len(later)) is None
    assert answers.find(MapCache(5), 3) is None


def test_a_text_that_was_typed_has_its_pieces() -> None:
    """Would catch: the prompt of then without its tokens; a text of now that waits for a tokenizer for ever."""
    player = Player((1.0, Tokenize(1, "Hi")), (1.1, Tokenized(1, ())))
    player.engine.send(Tokenize(6, "Hi"))
    player.engine.send(Tokenize(7, "what nobody typed"))
    answers = [event for event in player.after(0) if isinstance(event, Tokenized)]
    assert [(answer.request_id, answer.ready) for answer in answers] == [(6, True), (7, True)]


def test_every_question_of_the_protocol_has_its_answer() -> None:
    """Would catch: a new view whose question a recording leaves without an answer."""
    questions = {kind for kind in get_args(Command) if "request_id" in kind.__dataclass_fields__}
    assert set(ANSWERS) == questions
    assert set(ANSWERS.values()) <= set(get_args(Event))


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_a_sentence_stands_for_an_answer_that_there_isn_t(kind: Any) -> None:
    """Would catch: an answer that can't be made, since its kind has a field nobody thought of."""
    names = {"request_id": 3, "text": "a", "turn_id": 2, "index": 1}
    question = kind(**{name: value for name, value in names.items() if name in kind.__dataclass_fields__})
    answer: Any = unanswered(question, "No.")
    assert type(answer) is ANSWERS[kind]
    assert answer.request_id == 3
    assert getattr(answer, "problem", "No.") == "No."
