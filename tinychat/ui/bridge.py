"""The thing between screen and engine: drains events on a timer and joins what a screen would draw only once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tinychat.protocol import (
    CacheStats,
    Command,
    Divergence,
    DownloadProgress,
    Engine,
    Event,
    MemoryStats,
    ModelLoading,
    PrefillProgress,
    Probed,
    Profiled,
    SamplerUsed,
    TokenEmitted,
)


@dataclass(frozen=True, slots=True)
class TokenRun:
    """The tokens of one reply that came within one tick, joined."""

    turn_id: int
    count: int
    text: str
    """What may be shown of the answer."""
    thinking: str
    """What may be shown of the thinking."""
    drafted: int = 0
    """How many tokens the reply has drafted so far."""
    tokens: tuple[TokenEmitted, ...] = field(default=(), compare=False)
    """The tokens themselves."""


Update = Event | TokenRun
"""What the screen is told: the engine's events, tokens joined, of progress only the latest."""

_LATEST_ONLY: Final = (CacheStats, MemoryStats, PrefillProgress, DownloadProgress, ModelLoading)
_BESIDE: Final = (CacheStats, MemoryStats, Divergence, Probed, Profiled, SamplerUsed)
"""Whose place among the tokens of a tick doesn't matter."""

IDLE: Final = 0.05
"""Seconds between two looks at the outbox while nothing is being said."""
WAITING: Final = 0.02
"""The same while the first token is awaited; the error of the time shown for it."""
SLOWEST: Final = 0.125
"""The same while tokens come faster than anyone reads."""


class Bridge:
    """One engine, seen from the UI thread. Knows nothing of widgets, so that it can be tested without a screen."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def send(self, command: Command) -> None:
        """Put a command into the engine's inbox; never blocks."""
        self._engine.send(command)

    def drain(self) -> list[Update]:
        """Return what happened since the last call, in order: runs of tokens joined, stale progress dropped."""
        events = self._engine.poll(0.0)
        newest: dict[type, int] = {type(e): index for index, e in enumerate(events) if isinstance(e, _LATEST_ONLY)}
        updates: list[Update] = []
        run: list[TokenEmitted] = []
        for index, event in enumerate(events):
            if isinstance(event, TokenEmitted):
                if run and run[0].turn_id != event.turn_id:
                    updates.append(_joined(run))
                    run = []
                run.append(event)
            elif newest.get(type(event), index) == index:
                if run and not isinstance(event, _BESIDE):
                    updates.append(_joined(run))
                    run = []
                updates.append(event)
        if run:
            updates.append(_joined(run))
        return updates


def tick(rate: float) -> float:
    """Seconds until the next look while a reply is being said at `rate` tokens a second.

    Every repaint takes the engine's cores, so a fast reply is drawn in larger bites: 20 a second up to 80 tokens a
    second, 8 from 200 on.
    """
    return min(max(rate / 1600, IDLE), SLOWEST)


def _joined(run: list[TokenEmitted]) -> TokenRun:
    first = run[0]
    text = "".join(token.text for token in run)
    thinking = "".join(token.thinking for token in run)
    return TokenRun(first.turn_id, len(run), text, thinking, run[-1].drafted, tuple(run))
