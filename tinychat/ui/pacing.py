"""How fast a reply goes on: as fast as it can, so many tokens a second, or a token at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tinychat.protocol import Command, Pace


class Pacing:
    """What a person asked for, and where the reply waits. The rate holds for later replies too; a pause doesn't."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self.rate: float | None = None
        """Tokens a second at most; None: as fast as the machine can."""
        self.holding = False
        """Whether the reply, or the next one where none is being made, shall wait."""
        self.waits_at: int | None = None
        """Index of the token before which the reply waits; None while it goes on."""

    @property
    def paused(self) -> bool:
        """Whether the reply waits."""
        return self.waits_at is not None

    def begin(self) -> Pace:
        """A reply is asked for: return how it begins to go on."""
        self.waits_at = None
        return Pace("pause" if self.holding else "play", self.rate)

    def end(self) -> None:
        """The reply has ended."""
        self.waits_at = None
        self.holding = False

    def went_on(self) -> None:
        """Tokens came."""
        self.waits_at = None

    def hold(self, holding: bool, busy: bool) -> None:
        """Have the reply wait, or go on; the next one, where none is being made."""
        self.holding = holding
        if busy:
            self._send(Pace("pause" if holding else "play", self.rate))

    def step(self, mode: Literal["step", "sentence"]) -> None:
        """Have the reply being made go on by one token, or to the end of the sentence, and wait there."""
        self.holding = True
        self._send(Pace(mode, self.rate))

    def set_rate(self, rate: float | None, busy: bool) -> None:
        """Play at most so many tokens a second."""
        self.rate = rate
        if busy and not self.holding:
            self._send(Pace("play", rate))
