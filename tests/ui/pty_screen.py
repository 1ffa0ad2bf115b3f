"""Runs the real screen in the terminal it is started in, on a scripted engine. For test_pty.py.

Argument: what the engine does: "answer" (says every nasty string in every way an engine can), "hang" (nothing, once it
is asked: the person quits in prefill), "talk" (tokens without end), "load" (it never gets ready). And, if the chat is
to be kept, the file to keep it in.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from nasty import NASTY  # noqa: E402
from scripted_engine import INFO, PacedEngine, ScriptedEngine, stats  # noqa: E402

from tinychat.catalog import HubSource, ModelCard  # noqa: E402
from tinychat.chats.recorder import Recorder  # noqa: E402
from tinychat.protocol import (  # noqa: E402
    Command,
    DownloadProgress,
    Engine,
    Generate,
    LoadModel,
    ModelLoading,
    ModelReady,
    Notice,
    SamplerSettings,
)
from tinychat.ui.app import ChatApp  # noqa: E402

ALL = "   ".join(reversed(NASTY))


class Answering(ScriptedEngine):
    """Says all of it in every way an engine can."""

    def send(self, command: Command) -> None:
        super().send(command)
        if isinstance(command, LoadModel):
            self.emit(DownloadProgress(self.load_id, ALL, 1, 2), ModelLoading(self.load_id, ALL, 0.5))
            self.ready(name=ALL, architecture=ALL, dtype=ALL, dtype_reason=ALL, notices=(ALL,), thinking=True)
        elif isinstance(command, Generate):
            self.emit(Notice(ALL), Notice(ALL, command.turn_id))
            self.say(*ALL, thinking=True)
            self.say(*ALL)
            self.finish(ALL, thinking=ALL)
            self.fail(ALL, ALL)

    def ready(self, sampler: SamplerSettings | None = None, **changes: object) -> None:
        """Get ready, and tell settings and caches in the same words."""
        super().ready(sampler, **changes)
        at, event = next((i, e) for i, e in enumerate(self._outbox) if isinstance(e, ModelReady))
        self._outbox[at] = ModelReady(event.load_id, event.info, event.sampler, (("top_p", ALL),))
        self.emit(*stats(INFO))


class Silent(ScriptedEngine):
    """Gets ready and never answers."""

    def send(self, command: Command) -> None:
        super().send(command)
        if isinstance(command, LoadModel):
            self.ready()


def engine(kind: str) -> Engine:
    """Return the engine that behaves as told."""
    if kind == "answer":
        return Answering()
    if kind == "talk":
        return PacedEngine(200, [" word"], 10**9)
    return Silent() if kind == "hang" else ScriptedEngine()


if __name__ == "__main__":
    recorder = Recorder(Path(sys.argv[2])) if len(sys.argv) > 2 else None
    load = LoadModel(0, ModelCard(ALL, HubSource("a/b"), summary=ALL))
    app = ChatApp(engine(sys.argv[1]), load, system=ALL, recorder=recorder)
    app.run()
    if recorder is not None:
        recorder.close()
    sys.stdout.flush()
    os._exit(app.return_code or 0)
