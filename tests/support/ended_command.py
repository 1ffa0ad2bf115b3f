"""What a command left behind, and how it is started, for tests of the command line."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ended:
    """A command that has run."""

    status: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """stdout, which has to be UTF-8."""
        return self.stdout.decode()

    @property
    def json(self) -> Any:
        """stdout, which has to be one line of JSON in ASCII."""
        assert self.stdout.count(b"\n") == 1
        return json.loads(self.stdout.decode("ascii"))

    @property
    def lines(self) -> list[Any]:
        """stdout, which has to be JSON, an object a line."""
        return [json.loads(line) for line in self.stdout.decode("ascii").splitlines()]


Command = Callable[..., Ended]


def heed_signals() -> None:
    """Undo in a new process what nohup, or a shell that runs the tests in its background, has it ignore."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
