"""The engine without a screen: load a model, make one reply, and stop either when the person has had enough."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tinychat.cli.console import Notices
from tinychat.cli.ending import Interruption, Terminated
from tinychat.cli.progress import Progress
from tinychat.cli.record import recorded
from tinychat.errors import Cancelled, TinychatError, UsageError
from tinychat.protocol import (
    Cancel,
    Divergence,
    DownloadProgress,
    EngineFailed,
    Generate,
    LoadModel,
    ModelLoading,
    ModelReady,
    Notice,
    TokenEmitted,
    TurnFinished,
)

_LOOK: Final = 0.05
"""Seconds to wait for an event before looking at interruptions."""
_PATIENCE: Final = 2.0
"""Seconds the engine has to end what was stopped: a token, a chunk of a prompt, a download with what it leaves."""


class Headless:
    """An engine of this process, and stderr."""

    def __init__(self, trace: str | None = None, record: str | None = None, beside: Headless | None = None) -> None:
        """Start the engine's thread, or share it.

        Args:
            trace: A file that each token is written to.
            record: A file that all that passes is written to.
            beside: The one whose thread this one shares, and which ends both.

        Raises:
            TinychatError: Such a file can't be written.
        """
        from tinychat.engine.thread import LocalEngine
        from tinychat.engine.trace import Trace

        other = None if beside is None else beside.engine
        self.engine: LocalEngine = LocalEngine(None if trace is None else Trace(Path(trace)), other)
        self._told = recorded(self.engine, record)
        """The engine, as commands and events reach it."""
        self._notices = Notices()
        self._fetching = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._told.close()

    def load(self, command: LoadModel) -> ModelReady:
        """Load a model, and print what there is to say about it.

        Raises:
            TinychatError: It can't be loaded.
        """
        self._told.send(command)
        with Progress(self._notices, command.card.name) as progress:
            try:
                ready = self._loaded(progress)
            except (KeyboardInterrupt, Terminated):
                self._stop_load(command.load_id)
                raise
        for notice in ready.info.notices:
            self._notices.line(f"note: {notice}")
        return ready

    def reply(self, command: Generate, interruption: Interruption) -> Iterator[TokenEmitted | TurnFinished]:
        """Make a reply: yield its tokens, and in the end `TurnFinished`.

        An interruption stops it, too; there is no `TurnFinished` where the engine then takes too long.

        Raises:
            TinychatError: It failed; what came before has been yielded.
        """
        self.send(command)
        for event in self.follow(command, interruption):
            if not isinstance(event, Divergence):
                yield event

    def send(self, command: Generate) -> None:
        """Begin a reply."""
        self._told.send(command)

    def follow(
        self, command: Generate, interruption: Interruption
    ) -> Iterator[TokenEmitted | Divergence | TurnFinished]:
        """Yield what comes of a reply that was begun; as `reply` otherwise."""
        deadline = math.inf
        while time.monotonic() < deadline:
            for event in self._told.poll(_LOOK):
                match event:
                    case TokenEmitted() | Divergence():
                        yield event
                    case Notice(text=text):
                        self._notices.line(f"note: {text}")
                    case TurnFinished(reason=reason) if reason != "failed":
                        yield event
                        return
                    case EngineFailed():
                        raise _error(event)
            if interruption.status and deadline == math.inf:
                self._told.send(Cancel(turn_id=command.turn_id))
                deadline = time.monotonic() + _PATIENCE

    def _loaded(self, progress: Progress) -> ModelReady:
        while True:
            for event in self._told.poll(_LOOK):
                match event:
                    case DownloadProgress(file=file, done=done, total=total):
                        progress.bytes(file, done, total)
                    case ModelLoading(stage=stage, fraction=fraction):
                        self._fetching = False
                        progress.stage(stage, fraction)
                    case ModelReady():
                        return event
                    case EngineFailed():
                        raise _error(event)

    def _stop_load(self, load_id: int) -> None:
        """Have a download remove what it leaves; what is being loaded goes with the process."""
        self._told.send(Cancel(load_id=load_id))
        deadline = time.monotonic() + _PATIENCE
        while self._fetching and time.monotonic() < deadline:
            if any(isinstance(event, EngineFailed | ModelReady) for event in self._told.poll(_LOOK)):
                return


def _error(failed: EngineFailed) -> TinychatError:
    """Return what the engine reported as the exception it was."""
    kind = Cancelled if failed.cancelled else UsageError if failed.usage else TinychatError
    error = kind(failed.summary, failed.remedy)
    error.add_note(failed.detail)
    return error
