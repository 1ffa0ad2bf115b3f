"""Asks the engine for the pieces of what is being typed, without ever asking faster than it answers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from tinychat.protocol import Command, Piece, Tokenize, Tokenized


class DraftTokenizer:
    """One request at a time; whatever was typed meanwhile is asked for next, and only the latest of it."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._ids = count(1)
        self._asked: int | None = None
        self._waiting: str | None = None
        self.ready = False
        """Whether there is a tokenizer to ask."""

    def begin(self) -> None:
        """A tokenizer is loaded: ask what has waited for it."""
        self.ready = True
        self._ask_next()

    def ask(self, draft: str) -> None:
        """Ask for the pieces of `draft`, now or as soon as the last answer is there."""
        self._waiting = draft
        self._ask_next()

    def answer(self, answer: Tokenized) -> tuple[Piece, ...] | None:
        """Take an answer; return its pieces, or None where it is no answer to what was asked last."""
        if answer.request_id != self._asked:
            return None
        self._asked = None
        if not answer.ready:
            self.ready = False
            return None
        self._ask_next()
        return answer.pieces

    def _ask_next(self) -> None:
        if self.ready and self._asked is None and self._waiting is not None:
            self._asked = next(self._ids)
            self._send(Tokenize(self._asked, self._waiting))
            self._waiting = None
