"""An engine that does exactly what a test tells it to, and one that talks at a given speed."""

from __future__ import annotations

import itertools
import math
import re
import time
from dataclasses import replace
from typing import Any

from scripted_glass import attended, described, explained, explained_text, inspected, lensed, mapped

from tinychat.protocol import (
    Attend,
    CacheBlocks,
    CacheStats,
    Cancel,
    Command,
    DescribePrompt,
    EngineFailed,
    Event,
    Explain,
    ExplainText,
    FinishReason,
    Generate,
    Inspect,
    LayerCache,
    Lens,
    LoadModel,
    MapCache,
    MemoryStats,
    ModelInfo,
    ModelReady,
    Paused,
    Piece,
    PrefillProgress,
    SamplerSettings,
    TokenEmitted,
    Tokenize,
    Tokenized,
    TokenizerReady,
    TurnFinished,
)

INFO = ModelInfo(
    name="smollm2",
    architecture="Llama",
    parameters=134_515_008,
    dtype="int4",
    head_dtype="bf16",
    dtype_reason="int4 (file Q4_1), head bf16 (file Q8_0)",
    format="chat",
    thinking=False,
    context=8192,
    model_context=8192,
    layers=30,
    weights_bytes=127_400_000,
    cache_bytes=188_743_680,
    vocabulary="hash-of-smollm2",
    vocabulary_size=49_152,
    kernel="numba",
    threads=2,
    load_seconds=0.41,
)
SOURCES = (("temperature", "models.toml"), ("top_p", "models.toml"))

CHANCES = (0.95, 0.5, 0.25, 0.125, 0.01)
"""The probabilities of a reply's tokens, over and over."""

_PIECE = re.compile(r"\s?[A-Za-z]{1,6}|\s?\d|\s|.", re.DOTALL)


def pieces_of(text: str) -> tuple[Piece, ...]:
    """Cut a text much as a BPE vocabulary would: short words, and characters beyond ASCII byte pair by byte pair."""
    pieces: list[Piece] = []
    start = 0
    for word in _PIECE.findall(text):
        data = word.encode()
        chunks = [data] if len(data) == len(word) else [data[i : i + 2] for i in range(0, len(data), 2)]
        for chunk in chunks:
            pieces.append(Piece(int.from_bytes(chunk[:3], "big") % 49_152, chunk, start))
            start += len(chunk)
    return tuple(pieces)


class ScriptedEngine:
    """Keeps the commands it is sent and gives the events it is told to; nothing happens by itself."""

    def __init__(self, tokenizes: bool = True) -> None:
        self.commands: list[Command] = []
        self.tokenizes = tokenizes
        self.answers = True
        """Whether questions about what goes on inside are answered at once."""
        self._outbox: list[Event] = []
        self._index = itertools.count()
        self.spoken = 0
        """Tokens of the reply so far."""
        self.lengths: dict[int, int] = {}
        """Turn to its tokens."""

    # The engine's interface

    def send(self, command: Command) -> None:
        self.commands.append(command)
        if isinstance(command, Tokenize) and self.tokenizes:
            self.emit(Tokenized(command.request_id, pieces_of(command.text)))
        elif isinstance(command, Generate):
            self._index = itertools.count()
            self.spoken = 0
        elif self.answers:
            self._answer(command)

    def _answer(self, command: Command) -> None:
        match command:
            case Explain():
                self.emit(explained(command, said=command.index < self.lengths.get(command.turn_id, 0)))
            case ExplainText():
                self.emit(explained_text(command))
            case Inspect():
                self.emit(inspected(command))
            case Lens():
                self.emit(lensed(command))
            case Attend():
                self.emit(attended(command))
            case MapCache():
                self.emit(mapped(command, self.lengths.get(self.turn_id, 0) if self.sent(Generate) else 0))
            case DescribePrompt():
                self.emit(described(command))

    def poll(self, timeout: float = 0.0) -> list[Event]:
        events, self._outbox = self._outbox, []
        return events

    def close(self, timeout: float = 0.3) -> bool:
        return True

    # The script

    def emit(self, *events: Event) -> None:
        """Give these events at the next poll."""
        self._outbox.extend(events)

    def sent(self, kind: type[Any]) -> list[Any]:
        """The commands of one kind, in order."""
        return [command for command in self.commands if isinstance(command, kind)]

    @property
    def load_id(self) -> int:
        return int(self.sent(LoadModel)[-1].load_id)

    @property
    def turn_id(self) -> int:
        return int(self.sent(Generate)[-1].turn_id)

    def ready(self, sampler: SamplerSettings | None = None, **changes: Any) -> None:
        """The model that was asked for is loaded."""
        info = replace(INFO, **changes)
        settings = sampler or SamplerSettings(temperature=0.2, top_p=0.9)
        self.emit(TokenizerReady(self.load_id, info.vocabulary, info.vocabulary_size))
        self.emit(ModelReady(self.load_id, info, settings, SOURCES), *stats(info))

    def prefill(self, done: int, total: int, reused: int = 0) -> None:
        """So much of the prompt is read."""
        self.emit(PrefillProgress(self.turn_id, done, total, reused))

    def say(self, *texts: str, thinking: bool = False) -> None:
        """One token a text."""
        for text in texts:
            said, thought = ("", text) if thinking else (text, "")
            index, data = next(self._index), text.encode("utf-8", "surrogatepass")
            chance = CHANCES[index % len(CHANCES)]
            token_id = int.from_bytes(data[:3], "big") % 49_152
            numbers = (math.log(chance), 1 + index % len(CHANCES), 1.0)
            self.emit(TokenEmitted(self.turn_id, index, token_id, data, said, thought, *numbers, seconds=0.005))
            self.spoken = index + 1
            self.lengths[self.turn_id] = self.spoken

    def pause(self) -> None:
        """The reply waits before its next token."""
        self.emit(Paused(self.turn_id, self.spoken))

    def finish(self, text: str, reason: FinishReason = "eos", turn_id: int | None = None, **changes: Any) -> None:
        """The reply is complete."""
        ids = tuple(range(len(text.split())))
        at = self.turn_id if turn_id is None else turn_id
        new = changes.get("new_tokens", len(ids))
        seconds = (new - 1) / 212 if new > 1 else 0.0
        finished = TurnFinished(at, reason, ids, text, "", 350, 312, new, 0.02, seconds, 0.041, 77, "numba")
        self.emit(replace(finished, **changes))

    def fail(self, summary: str, remedy: str, **where: Any) -> None:
        """Something went wrong."""
        self.emit(EngineFailed(summary, remedy, "Traceback ...", **where))


def stats(info: ModelInfo = INFO, used: int = 0, reused: int = 0) -> tuple[CacheStats, MemoryStats]:
    """Gauges for a cache with `used` tokens."""
    reserved_bytes = info.cache_bytes // info.layers
    layer = LayerCache(used, info.context, reserved_bytes * used // info.context, reserved_bytes, "bf16")
    cache = CacheStats((layer,) * info.layers, reused, CacheBlocks(10, 2, 311))
    used_bytes = layer.used_bytes * info.layers
    memory = MemoryStats(info.weights_bytes, used_bytes, info.cache_bytes, 480_000_000, 9_200_000_000, info.copy_bytes)
    return cache, memory


class PacedEngine(ScriptedEngine):
    """Answers every question with the same words, so many a second, by the clock: for benchmarks and for looking."""

    def __init__(self, rate: float, words: list[str], length: int) -> None:
        super().__init__()
        self._rate = rate
        self._words = words
        self._length = length
        self._began = 0.0
        self._said = 0
        self._generating: Generate | None = None
        self._used = 0

    def send(self, command: Command) -> None:
        super().send(command)
        match command:
            case LoadModel():
                self.ready()
            case Generate():
                self._generating, self._said, self._began = command, 0, time.monotonic()
                self.prefill(350, 350, self._used)
                self._used = max(self._used, 350)
            case Cancel() if self._generating is not None:
                self._end("cancelled")

    def poll(self, timeout: float = 0.0) -> list[Event]:
        if self._generating is not None:
            due = min(int((time.monotonic() - self._began) * self._rate), self._length)
            for index in range(self._said, due):
                self.say(self._words[index % len(self._words)])
            if due > self._said:
                self.emit(*stats(used=self._used + due, reused=350))
            self._said = due
            if due >= self._length:
                self._end("eos")
        return super().poll(timeout)

    def _end(self, reason: FinishReason) -> None:
        text = "".join(self._words[index % len(self._words)] for index in range(self._said))
        seconds = time.monotonic() - self._began
        self._used += self._said
        self.finish(text, reason, new_tokens=self._said, decode_seconds=seconds)
        self._generating = None
