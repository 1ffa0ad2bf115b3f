"""Asks the engine about one thing after another, without ever asking faster than it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final

from tinychat.protocol import Command

_LEAST: Final = 0.1
"""Seconds between two questions."""
_PATIENCE: Final = 20.0
"""Seconds after which an answer is no longer waited for: a load may have ended the engine's memory of the question."""


class Inquiry:
    """One question at a time, at most ten a second; of what is wanted meanwhile only the latest is asked."""

    def __init__(self, send: Callable[[Command], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._count = 0
        self._subject: Hashable = None
        self._waiting = False
        self._asked_at = -_PATIENCE

    def want(self, subject: Hashable, command: Callable[[int], Command], least: float = _LEAST) -> None:
        """Ask about `subject` if that wasn't what was asked last; call it again and again, as long as it is wanted.

        Args:
            subject: What is asked, to be compared with what was asked before.
            command: Makes the command of a request id.
            least: Seconds to let pass since the last question.
        """
        since = self._clock() - self._asked_at
        if subject == self._subject or since < least or (self._waiting and since < _PATIENCE):
            return
        self._count += 1
        self._subject, self._waiting, self._asked_at = subject, True, self._clock()
        self._send(command(self._count))

    def answered(self, request_id: int | None) -> bool:
        """Take an answer's id; return whether it is the answer to what was asked last."""
        if request_id != self._count or not self._waiting:
            return False
        self._waiting = False
        return True

    def forget(self) -> None:
        """Ask anew whatever is wanted next; an answer under way is not waited for."""
        self._subject, self._waiting = None, False
