"""`--record`: an engine whose commands and events are kept in a file."""

from __future__ import annotations

from pathlib import Path

from tinychat.protocol import Engine


def recorded(engine: Engine, path: str | None) -> Engine:
    """Return an engine that keeps in the file `path` all that passes; None: the engine itself.

    Raises:
        TinychatError: There is such a file, or it can't be written.
    """
    if path is None:
        return engine
    from tinychat.engine.recording import RecordedEngine

    return RecordedEngine(engine, Path(path))
