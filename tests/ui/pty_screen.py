"""Runs the real screen in the terminal it is started in, on a scripted engine. For test_pty.py.

Argument: what the engine does once it is asked: "answer" (a reply full of control characters), "hang" (nothing: the
person quits in prefill), "talk" (tokens without end), "load" (it never gets ready).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from scripted_engine import PacedEngine, ScriptedEngine  # noqa: E402

from tinychat.catalog import HubSource, ModelCard  # noqa: E402
from tinychat.protocol import Command, Engine, Generate, LoadModel, Notice  # noqa: E402
from tinychat.ui.app import ChatApp  # noqa: E402

NASTY = "A\x1b]52;c;aGk=\x1b\\B\x1b[2JC\x9b31mD\x1b]0;title\x07E\u202eF"


class Answering(ScriptedEngine):
    """Says NASTY in every way an engine can."""

    def send(self, command: Command) -> None:
        super().send(command)
        if isinstance(command, LoadModel):
            self.ready(name=NASTY, dtype_reason=NASTY, notices=(NASTY,))
        elif isinstance(command, Generate):
            self.emit(Notice(NASTY), Notice(NASTY, command.turn_id))
            self.say(*NASTY)
            self.finish(NASTY)
            self.fail(NASTY, NASTY)


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
    app = ChatApp(engine(sys.argv[1]), LoadModel(0, ModelCard(NASTY, HubSource("a/b"), summary=NASTY)))
    app.run()
    sys.stdout.flush()
    os._exit(app.return_code or 0)
