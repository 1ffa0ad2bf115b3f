"""Reports of caches and memory, no more of them than a screen can use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tinychat.engine import memory
from tinychat.protocol import CacheStats, Event, LayerCache, MemoryStats

if TYPE_CHECKING:
    from tinychat.engine.loading import Session

EVERY: Final = 0.1
"""Seconds between two reports."""


class Gauges:
    """Reads one session's."""

    def __init__(self) -> None:
        """A first report is due at once."""
        self._due = 0.0
        self._kept = 0
        """Bytes kept of tokens, as they were told of last."""

    def read(self, session: Session, reused: int, *, force: bool = False) -> list[Event]:
        """Return a report, where one is due or forced.

        Args:
            session: The model and its caches.
            reused: Tokens of the last prompt that were in the caches before.
            force: Whether it is wanted now.
        """
        now = time.monotonic()
        if now < self._due and not force:
            return []
        self._due = now + EVERY
        layers = tuple(
            LayerCache(c.length, c.capacity, c.used_bytes, c.nbytes, str(c.dtype).removeprefix("torch."))
            for c in session.context.caches
        )
        return [CacheStats(layers, reused, session.context.blocks), self._memory(session)]

    def kept(self, session: Session) -> list[Event]:
        """Return a report of memory, where another amount is kept of tokens than was told of last."""
        return [] if session.kept_bytes == self._kept else [self._memory(session)]

    def _memory(self, session: Session) -> MemoryStats:
        self._kept = session.kept_bytes
        ours = session.weights_bytes, session.used_bytes, session.reserved_bytes
        copy = session.info.copy_bytes
        return MemoryStats(*ours, memory.process(), memory.available(), copy, self._kept)
