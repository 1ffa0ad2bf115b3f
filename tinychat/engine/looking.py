"""What somebody looks at, as the engine's thread keeps it: no torch before there is a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tinychat.protocol import Bandwidth, Event, View

if TYPE_CHECKING:
    from tinychat.engine.loading import Session

_BUFFER: Final = 2**28
"""Bytes that are read to time the memory: more than the caches of nearly any CPU hold."""
_READS: Final = 4


@dataclass(slots=True)
class Views:
    """What is looked at; it outlives replies and models."""

    wanted: frozenset[View] = frozenset()
    every_layer: bool = False
    """Whether the layers of each token are looked at, whoever wants to see them: for a trace."""
    _rate: float | None = field(default=None, init=False)
    _told_of: Session | None = field(default=None, init=False)

    def look(self, wanted: frozenset[View], session: Session | None) -> None:
        """Look at these from now on; what was kept for another view is let go."""
        self.wanted = wanted
        if session is not None and "attention" not in wanted:
            session.patterns = None

    def when_idle(self, session: Session | None) -> list[Event]:
        """Return how fast the memory is read, once a model, if somebody looks at time; it takes a tenth of a second."""
        if session is None or session is self._told_of or "time" not in self.wanted:
            return []
        from tinychat.engine.bench import bytes_per_token, read_rate

        self._told_of = session
        self._rate = self._rate or read_rate(_BUFFER, _READS)
        return [Bandwidth(self._rate, round(bytes_per_token(session, 0)))]
