"""A model under a recording: fed the recorded ids, it can be asked what nobody asked then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tinychat.engine.recorded import Entry
from tinychat.engine.recorded_answers import ANSWERS
from tinychat.protocol import (
    Cancel,
    DownloadProgress,
    Engine,
    EngineFailed,
    Event,
    Explain,
    Explained,
    Generate,
    Limits,
    LoadModel,
    MapCache,
    ModelLoading,
    ModelReady,
    Notice,
    Pace,
    Probed,
    SamplerSettings,
    SamplerUsed,
    TokenEmitted,
    TurnFinished,
)


class Beneath:
    """Speaks the numbers of the recording on both sides."""

    def __init__(self, engine: Engine, load: LoadModel, entries: Sequence[Entry]) -> None:
        """Prepare; nothing is loaded before `load`.

        Args:
            engine: The one that runs the model; closed with this.
            load: What it loads.
            entries: The recording.
        """
        self._engine = engine
        self._load = load
        self._tokens: dict[int, list[TokenEmitted]] = {}
        self._settings: dict[int, list[SamplerUsed]] = {}
        self._waiting: list[Any] = []
        """Questions about a reply that is still being computed."""
        self._computing: set[int] = set()
        self._ready: ModelReady | None = None
        self._recorded: ModelReady | None = None
        for entry in entries:
            match entry.said:
                case TokenEmitted():
                    self._tokens.setdefault(entry.said.turn_id, []).append(entry.said)
                case SamplerUsed():
                    self._settings.setdefault(entry.said.turn_id, []).append(entry.said)
                case ModelReady() if self._recorded is None:
                    self._recorded = entry.said

    def load(self) -> None:
        """Load the model."""
        self._engine.send(self._load)

    def cancel(self) -> None:
        """Stop loading."""
        self._engine.send(Cancel(load_id=self._load.load_id))

    def follow(self, asked: Generate) -> None:
        """Compute a reply of the recording: its ids are dictated."""
        tokens = self._tokens.get(asked.turn_id, [])
        if self._ready is None or not tokens:
            return
        self._computing.add(asked.turn_id)
        self._engine.send(
            replace(
                asked,
                sampler=self._used(asked.turn_id, 0),
                limits=Limits(len(tokens), ignore_end=True),
                forced_ids=tuple(token.token_id for token in tokens),
                begin=None,
                branch_of=None,
                pace=Pace(),
            )
        )

    def ask(self, question: Any) -> str:
        """Pass a question on; return why it can't be answered, as a sentence, "" where it can."""
        if self._ready is None:
            return "There is no model here that could compute it."
        if isinstance(question, MapCache):
            return "The caches of then are gone."
        if isinstance(question, Explain) and question.sampler is None:
            question = replace(question, sampler=self._used(question.turn_id, question.index))
        if getattr(question, "turn_id", None) in self._computing:
            self._waiting.append(question)
        else:
            self._engine.send(question)
        return ""

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """Return what there is to say: how the loading goes, and answers. Wait up to `timeout` seconds for it."""
        events: list[Event] = []
        for event in self._engine.poll(timeout):
            match event:
                case ModelReady():
                    events += [*self._compared(event), event]
                case TurnFinished(turn_id=turn_id):
                    self._computing.discard(turn_id)
                    waiting, self._waiting = self._waiting, []
                    for question in waiting:
                        self.ask(question)
                case EngineFailed(turn_id=turn_id) if turn_id is not None:
                    events.append(Notice(f"The model can't follow here: {event.summary}", turn_id))
                case Explained() | Probed():
                    events.append(self._explained(event))
                case DownloadProgress() | ModelLoading() | EngineFailed():
                    events.append(event)
                case _ if type(event) in ANSWERS.values():
                    events.append(event)
        return events

    def close(self, timeout: float) -> bool:
        """See `protocol.Engine`."""
        return self._engine.close(timeout)

    def _compared(self, ready: ModelReady) -> list[Event]:
        """Take the model, unless its ids aren't those of the recording; say where it is another one."""
        then = self._recorded
        if then is None or then.info.vocabulary != ready.info.vocabulary:
            return [Notice(f"{ready.info.name} has another vocabulary than the recording: it is played without it.")]
        self._ready = ready
        if difference := other_model(then, ready):
            return [Notice(f"{difference} What the views compute is this model's.")]
        return []

    def _used(self, turn_id: int, index: int) -> SamplerSettings:
        """Return the settings that a token was drawn by."""
        used = [each.sampler for each in self._settings.get(turn_id, []) if each.index <= index]
        return used[-1] if used else SamplerSettings()

    def _explained(self, answer: Explained | Probed) -> Event:
        """Return an answer with what was so then: here all tokens are dictated and none drawn."""
        if answer.problem or isinstance(answer, Probed):
            return answer if answer.problem else replace(answer, recomputed=True)
        tokens = self._tokens.get(answer.turn_id, [])
        if answer.index >= len(tokens):
            return replace(answer, recomputed=True, draw=None)
        draw = tokens[answer.index].draw
        return replace(answer, recomputed=True, draw=None if "greedy" in answer.stages else draw, forced=draw is None)


def other_model(then: ModelReady, now: ModelReady) -> str:
    """Return in a sentence how a model differs from the recorded one; "" where it is the same."""
    ours, theirs = now.info, then.info
    if theirs.fingerprint and ours.fingerprint != theirs.fingerprint:
        return (
            f"The recording was made with {theirs.name} (file {theirs.fingerprint[:12]}), "
            f"this is {ours.name} (file {ours.fingerprint[:12]})."
        )
    forms = [(i.dtype, i.head_dtype, i.kernel) for i in (theirs, ours)]
    if forms[0] != forms[1]:
        told = [f"{dtype}, head {head}, kernels {kernel}" for dtype, head, kernel in forms]
        return f"The recording was made with {told[0]}; this is {told[1]}."
    return ""
