"""A recording, read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from tinychat.engine.codec import decode
from tinychat.engine.recording import FORMAT
from tinychat.errors import TinychatError
from tinychat.protocol import CacheStats, Command, Event, LayerCache

_LONGEST: Final = 2**24
"""Bytes of a line: a prompt that fills a context of a million tokens has half as many."""
_NO_RECORDING: Final = "`tinychat run --record FILE` makes one."


@dataclass(frozen=True, slots=True)
class Entry:
    """What passed at one moment."""

    at: float
    """Seconds since the recording began."""
    said: Command | Event


@dataclass(frozen=True, slots=True)
class Recording:
    """What a file holds."""

    path: Path
    entries: tuple[Entry, ...]
    tinychat: str
    """Version of the program that made it."""
    began: str
    """When, as ISO 8601."""
    problem: str = ""
    """Where it breaks off, as a sentence; empty: it was ended in order."""


def read(path: Path) -> Recording:
    """Read a recording. One that breaks off, since the program was killed, is read as far as it goes.

    Raises:
        TinychatError: There is no such file, it is no recording, or a line that isn't the last makes no sense; the
            sentence names file and line.
    """
    entries: list[Entry] = []
    layers: dict[LayerCache, LayerCache] = {}
    problem = f"{path} breaks off: the recording wasn't ended."
    try:
        with path.open("rb") as file:
            header = _header(path, file)
            for number, line in _lines(path, file):
                if not line.endswith(b"\n"):
                    problem = f"{path} breaks off in line {number:,}; what comes before it is played."
                    break
                parsed = _parsed(path, number, line)
                if "end" in parsed:
                    problem = ""
                    break
                entries.append(_thin(_entry(path, number, parsed), layers))
    except OSError as error:
        raise TinychatError(f"{path} can't be read: {error.strerror or error}.", _NO_RECORDING) from None
    return Recording(path, tuple(entries), _short(header, "tinychat"), _short(header, "began"), problem)


def _header(path: Path, file: IO[bytes]) -> dict[str, Any]:
    line = file.readline(_LONGEST)
    try:
        header = json.loads(line)
        version = header["tinychat-recording"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise TinychatError(f"{path} is no recording of a chat.", _NO_RECORDING) from None
    if version != FORMAT:
        raise TinychatError(
            f"{path} is a recording of another kind than this tinychat reads ({FORMAT}).", "Update tinychat."
        )
    return dict(header)


def _short(header: dict[str, Any], key: str) -> str:
    """Return what the header says, no longer than it can be in truth."""
    return str(header.get(key, "an unknown one"))[:40]


def _lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines after the first, with their numbers."""
    number = 1
    while line := file.readline(_LONGEST):
        number += 1
        if len(line) == _LONGEST:
            raise _damaged(path, number, f"it has more than {_LONGEST:,} bytes")
        yield number, line


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        raise _damaged(path, number, "it is no JSON") from None
    if not isinstance(parsed, dict):
        raise _damaged(path, number, "it is no JSON object")
    return parsed


def _entry(path: Path, number: int, parsed: dict[str, Any]) -> Entry:
    try:
        at = decode(float, parsed.get("at"))
        if not 0 <= at < 2**31:
            raise ValueError(f"{at} is no time")
        command = parsed.get("command")
        return Entry(float(at), decode(Event, parsed.get("event")) if command is None else decode(Command, command))
    except ValueError as error:
        raise _damaged(path, number, str(error)) from None


def _damaged(path: Path, number: int, why: str) -> TinychatError:
    return TinychatError(
        f"{path}, line {number:,}: {why}.", "The file is damaged, or a newer tinychat made it; nothing of it is played."
    )


def _thin(entry: Entry, known: dict[LayerCache, LayerCache]) -> Entry:
    """Return an entry whose layers are objects that equal ones share: a model of 30 tells of 30 at a time."""
    if not isinstance(entry.said, CacheStats):
        return entry
    return Entry(entry.at, replace(entry.said, layers=tuple(known.setdefault(la, la) for la in entry.said.layers)))
