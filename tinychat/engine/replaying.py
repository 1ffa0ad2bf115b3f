"""An engine that plays a recording: it gives the events of then, at the speed of then, as its screen asks for replies.

Where the person of the recording said something, the screen is told by `Replayed` and does the same; it then sends a
`Generate` of its own, and gets the tokens that came then under the number that it gave the turn. Questions get the
answers of then. With a model beneath, which is fed the recorded ids, those that nobody asked then are answered, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, get_args

from tinychat.engine.beneath import Beneath
from tinychat.engine.pace import Pacer
from tinychat.engine.recorded import Entry, Recording
from tinychat.engine.recorded_answers import ANSWERS, RecordedAnswers, unanswered
from tinychat.protocol import (
    Cancel,
    Command,
    DownloadProgress,
    EngineFailed,
    Event,
    Explained,
    Generate,
    LoadModel,
    ModelLoading,
    ModelReady,
    Notice,
    Pace,
    Paused,
    Probed,
    Replayed,
    SetSampler,
    TokenEmitted,
    Tokenize,
    TokenizerReady,
    TurnFinished,
)

_EVENTS: Final = frozenset(get_args(Event))
_PASSED_OVER: Final = (DownloadProgress, ModelLoading, Paused, Replayed)
_SHOWN: Final = (Generate, SetSampler, Tokenize)
"""What a person did that a screen shows again."""
_LONGEST_WAIT: Final = 5.0
"""Seconds that the model is waited for at most,"""
_LONGEST_THOUGHT: Final = 0.8
"""and the person,"""
_LONGEST_KEY: Final = 0.12
"""and while the person types."""
_LATE: Final = 0.5
"""Seconds that are made up for, where a screen was slow."""
_NOT_RECORDED: Final = "Nobody looked at this while the chat was recorded."
_BARE: Final = "`tinychat replay FILE --model MODEL` computes it."


class ReplayEngine:
    """See `protocol.Engine`; belongs to the thread that calls it."""

    def __init__(
        self, recording: Recording, beneath: Beneath | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare to play; it begins when a screen asks for a model.

        Args:
            recording: What is played.
            beneath: A model that answers what nobody asked then; this engine closes it.
            clock: Gives seconds.
        """
        self._recording = recording
        self._entries = recording.entries
        self._answers = RecordedAnswers(recording.entries)
        self._beneath = beneath
        self._clock = clock
        self._outbox: list[Event] = []
        self._at = 0
        """The next entry."""
        self._due = 0.0
        """When the last one was."""
        self._playing = False
        self._load_id = 1
        self._asked: Generate | None = None
        """What the screen was told that the person asked, and has not asked for yet."""
        self._live: int | None = None
        """The reply being played, by its number then."""
        self._then: dict[int, int] = {}
        """Turns of the screen to those of the recording,"""
        self._now: dict[int, int] = {}
        """and back."""
        self._said: dict[int, int] = {}
        """How many tokens of each turn, by its number then, have been played."""
        self._pacer = Pacer(Pace(), clock)
        self._told = -1
        self._hurries = False
        """Whether the rest of the reply is wanted at once."""
        self._held = False
        """Whether what comes after the reply shall wait."""

    def send(self, command: Command) -> None:
        """See `protocol.Engine`."""
        match command:
            case LoadModel():
                self._load_id = command.load_id
                self._begin(command)
            case Generate():
                self._generate(command)
            case Pace():
                self._pace(command)
            case Cancel(turn_id=turn_id) if turn_id is not None and self._then.get(turn_id) == self._live:
                self._hurries = True
            case Cancel(load_id=load_id) if load_id is not None and self._beneath is not None:
                self._beneath.cancel()
            case _ if type(command) in ANSWERS:
                self._answer(command)

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """See `protocol.Engine`."""
        if self._beneath is not None:
            for event in self._beneath.poll():
                self._take(event)
        self._play()
        if not self._outbox and timeout > 0:
            time.sleep(timeout)
            return self.poll()
        events, self._outbox = self._outbox, []
        return events

    def close(self, timeout: float = 0.3) -> bool:
        """See `protocol.Engine`."""
        return self._beneath is None or self._beneath.close(timeout)

    # What the screen wants

    def _begin(self, command: LoadModel) -> None:
        """Play from the beginning, as soon as the model beneath is loaded."""
        if self._at:
            self._outbox.append(EngineFailed("A recording has one beginning.", "", "", load_id=command.load_id))
        elif self._beneath is None:
            self._start()
        else:
            self._beneath.load()

    def _start(self) -> None:
        self._playing, self._due = True, self._clock()
        if self._recording.problem:
            self._outbox.append(Notice(self._recording.problem))

    def _generate(self, command: Generate) -> None:
        """Play a reply under the number that the screen gave it."""
        if self._asked is None:
            summary = "This is a recording: it says what was said then and nothing else."
            remedy = "`tinychat run` opens a chat."
            self._outbox.append(EngineFailed(summary, remedy, "", turn_id=command.turn_id))
            return
        asked, self._asked = self._asked, None
        self._live = asked.turn_id
        self._then[command.turn_id], self._now[asked.turn_id] = asked.turn_id, command.turn_id
        self._said[asked.turn_id] = 0
        self._told, self._hurries = -1, False
        self._pacer.set(command.pace)
        self._due = self._clock()
        if self._beneath is not None:
            self._beneath.follow(asked)

    def _pace(self, pace: Pace) -> None:
        self._pacer.set(pace)
        self._told = -1
        self._due = self._clock()
        if self._live is None:
            self._held = pace.mode == "pause"

    def _answer(self, question: Any) -> None:
        """Answer as then, or by the model beneath, or say that neither can."""
        turn = getattr(question, "turn_id", None)
        then = question if turn is None else replace(question, turn_id=self._then.get(turn, 0))
        answer = self._answers.find(then, self._at)
        if answer is not None:
            self._outbox.append(self._unspoiled(self._as_now(answer)))
        elif remedy := _BARE if self._beneath is None else self._beneath.ask(then):
            self._outbox.append(unanswered(question, f"{_NOT_RECORDED} {remedy}"))

    def _take(self, event: Event) -> None:
        """Take what the model beneath has to say."""
        match event:
            case DownloadProgress() | ModelLoading():
                self._outbox.append(replace(event, load_id=self._load_id))
            case ModelReady() | EngineFailed():
                if isinstance(event, EngineFailed):
                    self._outbox.append(Notice(f"{event.summary} {event.remedy}".strip()))
                if not self._playing:
                    self._start()
            case Notice():
                self._outbox.append(event if event.turn_id is None else self._as_now(event))
            case _:
                self._outbox.append(self._unspoiled(self._as_now(event)))

    def _unspoiled(self, answer: Event) -> Event:
        """Return an answer without which token was said, where that is still to come."""
        if isinstance(answer, Explained) and answer.index >= self._said.get(self._then.get(answer.turn_id, 0), 0):
            return replace(answer, chosen=None, draw=None)
        return answer

    # Playing

    def _play(self) -> None:
        """Give what is due."""
        while self._playing and self._asked is None:
            if self._at == len(self._entries):
                self._end()
                return
            entry = self._entries[self._at]
            if not self._shows(entry.said):
                self._at += 1
                continue
            if self._waits(entry):
                return
            self._at += 1
            self._give(entry.said)

    def _shows(self, said: Command | Event) -> bool:
        """Whether a screen is told of it again. Answers are kept for whoever asks again."""
        if type(said) in ANSWERS.values():
            return isinstance(said, Probed) and said.request_id is None
        return isinstance(said, _SHOWN) or (type(said) in _EVENTS and not isinstance(said, _PASSED_OVER))

    def _waits(self, entry: Entry) -> bool:
        """Whether it is too early for an entry."""
        said = entry.said
        if self._hurries and self._live is not None:
            return False
        if self._held and self._live is None and isinstance(said, _SHOWN):
            if self._told != 0:
                self._outbox.append(Paused(0, 0))
                self._told = 0
            return True
        now = self._clock()
        due = self._due + self._gap(entry)
        if isinstance(said, TokenEmitted):
            if self._pacer.holds(lambda: said.piece):
                if self._pacer.paused and self._told != said.index:
                    self._told = said.index
                    self._outbox.append(self._as_now(Paused(said.turn_id, said.index)))
                return True
            if self._pacer.rate is not None or self._pacer.stepped:
                due = now
        if due > now:
            return True
        self._due = max(due, now - _LATE)
        return False

    def _gap(self, entry: Entry) -> float:
        """Return the seconds between an entry and what was given before it."""
        said = entry.said
        if isinstance(said, TokenEmitted) and said.index:
            return min(max(said.seconds, 0.0), _LONGEST_WAIT)
        spoken = self._said.get(self._live, 0) if self._live is not None else 0
        if spoken or isinstance(said, ModelReady | TokenizerReady) or not self._at:
            return 0.0  # between two tokens, and for loading, nobody waits
        longest = _LONGEST_WAIT
        if isinstance(said, _SHOWN):
            longest = _LONGEST_KEY if isinstance(said, Tokenize) else _LONGEST_THOUGHT
        return min(max(entry.at - self._entries[self._at - 1].at, 0.0), longest)

    def _give(self, said: Any) -> None:
        """Tell the screen."""
        match said:
            case Generate():
                if self._live is not None:
                    self._break_off()
                self._asked = said
                branch = None if said.branch_of is None else self._now.get(said.branch_of)
                self._outbox.append(Replayed(replace(said, branch_of=branch)))
            case SetSampler() | Tokenize():
                self._outbox.append(Replayed(said))
            case TokenEmitted():
                self._said[said.turn_id] = said.index + 1
                self._pacer.said(said.piece)
                self._outbox.append(self._as_now(said))
            case ModelReady() | TokenizerReady():
                self._outbox.append(replace(said, load_id=self._load_id))
            case EngineFailed(load_id=load_id) if load_id is not None:
                self._outbox.append(replace(said, load_id=self._load_id))
            case _:
                self._outbox.append(self._as_now(said))
                ends = isinstance(said, TurnFinished | EngineFailed) and said.turn_id == self._live
                if ends and self._live is not None:
                    self._held = self._hurries or self._pacer.paused
                    self._live, self._hurries, self._told = None, False, -1

    def _as_now(self, event: Event) -> Event:
        """Return an event with the number that its turn has on the screen; 0, a number no turn has, for an unknown."""
        turn = getattr(event, "turn_id", None)
        made: Any = event
        return event if turn is None else replace(made, turn_id=self._now.get(turn, 0))

    def _break_off(self) -> None:
        """End a reply whose end wasn't recorded."""
        if self._live is not None:
            failed = EngineFailed("The recording of this reply breaks off here.", "", "", turn_id=self._live)
            self._outbox.append(self._as_now(failed))
            self._live = None

    def _end(self) -> None:
        self._break_off()
        self._playing = False
        self._outbox.append(Notice("The recording ends here. The views can still be opened; Ctrl+Q leaves."))
