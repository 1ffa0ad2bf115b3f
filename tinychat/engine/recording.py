"""A chat as a file: what went down to an engine and what came up from it, as it passed, a JSON object a line.

The first line says what the file is. Each line after it is `{"at": seconds, "command": {...}}` or `{"at": seconds,
"event": {...}}`, made by `codec`, and the last one of a recording that was ended in order is `{"at": seconds, "end":
true}`. Of a file on this machine only the name is kept, of an error no traceback: a recording may be shown to others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tinychat import __version__
from tinychat.catalog import FileSource, ModelCard
from tinychat.engine.codec import encode
from tinychat.errors import TinychatError
from tinychat.protocol import CacheStats, Command, Engine, EngineFailed, Event, LoadModel, MemoryStats, Notice

FORMAT: Final = 1
"""Goes up when older programs would misread the lines; fields with a default may come without."""
FLUSH_EVERY: Final = 0.25
"""Seconds that may be lost where the process is killed."""
_STATS_EVERY: Final = 0.5
"""Seconds between two sizes of caches and memory: a screen draws them as often."""


class RecordedEngine:
    """An engine that behaves as another one, and writes down what passes."""

    def __init__(self, engine: Engine, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin a file.

        Args:
            engine: Does the work; this one closes it, too.
            path: A file that isn't there yet.
            clock: Gives seconds.

        Raises:
            TinychatError: There is such a file, or it can't be written.
        """
        self._engine = engine
        self._recorder = Recorder(path, clock)

    def send(self, command: Command) -> None:
        """See `protocol.Engine`."""
        self._recorder.write("command", command)
        self._engine.send(command)

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """See `protocol.Engine`; whoever waits for events has the file flushed, too."""
        events = self._engine.poll(timeout)
        for event in events:
            self._recorder.write("event", event)
        self._recorder.flush()
        return events if (problem := self._recorder.problem()) is None else [*events, Notice(problem)]

    def close(self, timeout: float = 0.3) -> bool:
        """See `protocol.Engine`."""
        ended = self._engine.close(timeout)
        self.poll()
        self._recorder.end()
        return ended


class Recorder:
    """The file."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin it; see `RecordedEngine`."""
        self._path = path
        self._clock = clock
        self._began = self._flushed = clock()
        self._stats: dict[type, tuple[float, Event | None]] = {}
        """When a size was written last, and a newer one that waits."""
        self._problem: str | None = None
        self._ended = False
        try:
            self._file = path.open("x", encoding="ascii", newline="\n")
        except FileExistsError:
            raise TinychatError(f"{path} is there already.", "Choose another file for --record.") from None
        except OSError as error:
            raise TinychatError(self._sentence(error), "Choose another file for --record.") from None
        began = datetime.now(UTC).isoformat(timespec="seconds")
        self._line({"tinychat-recording": FORMAT, "tinychat": __version__, "began": began})
        self._flush()

    def write(self, way: str, value: Command | Event) -> None:
        """Write a command or an event; `way` says which."""
        if isinstance(value, CacheStats | MemoryStats):
            last, _ = self._stats.get(type(value), (float("-inf"), None))
            if self._clock() - last < _STATS_EVERY:
                self._stats[type(value)] = last, value
                return
            self._stats[type(value)] = self._clock(), None
        self._line({"at": self._at(), way: encode(Command if way == "command" else Event, _shown(value))})

    def flush(self) -> None:
        """Have the operating system take what is written, if that hasn't been done for a while."""
        if self._clock() - self._flushed >= FLUSH_EVERY:
            for kind, (last, waits) in list(self._stats.items()):
                if waits is not None and self._clock() - last >= _STATS_EVERY:
                    self.write("event", waits)
                    self._stats[kind] = self._clock(), None
            self._flush()

    def problem(self) -> str | None:
        """Return once, as a sentence, why nothing more is written."""
        problem, self._problem = self._problem, None
        return problem

    def end(self) -> None:
        """Write the last line, and close the file."""
        for _, waits in self._stats.values():
            if waits is not None:
                self._line({"at": self._at(), "event": encode(Event, waits)})
        self._line({"at": self._at(), "end": True})
        self._flush()
        self._ended = True
        try:
            self._file.close()
        except OSError as error:
            self._fail(error)

    def _at(self) -> float:
        return round(self._clock() - self._began, 4)

    def _line(self, line: dict[str, Any]) -> None:
        if not self._ended:
            try:
                self._file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
            except OSError as error:
                self._fail(error)

    def _flush(self) -> None:
        self._flushed = self._clock()
        if not self._ended:
            try:
                self._file.flush()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Write no more: a file with a hole would be worse than one that ends."""
        self._ended = True
        self._problem = f"{self._sentence(error)} The recording ends there."

    def _sentence(self, error: OSError) -> str:
        return f"{self._path} can't be written: {error.strerror or error}."


def _shown(value: Command | Event) -> Command | Event:
    """Return a command or an event without what is this machine's own affair."""
    if isinstance(value, LoadModel):
        return replace(value, card=_named(value.card), draft=None if value.draft is None else _named(value.draft))
    return replace(value, detail="") if isinstance(value, EngineFailed) else value


def _named(card: ModelCard) -> ModelCard:
    if isinstance(card.source, FileSource):
        return replace(card, source=FileSource(Path(card.source.path).name))
    return card
