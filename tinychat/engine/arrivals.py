"""How tokens came into the caches, a byte each, and what is counted on the way: what the map of the cache is made of.

It is kept all the time, since it can't be found out afterwards, and costs a token half a microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinychat.protocol import Arrival

REUSED: Final = b"r"
"""It was there before the last prompt."""
COMPUTED: Final = b"c"
"""It was computed with the prompt."""
DRAWN: Final = b"d"
"""It was computed after it had been drawn."""
GUESSED: Final = b"g"
"""It was computed as a guess, together with the token before it."""

NAMES: Final[dict[int, Arrival]] = {REUSED[0]: "reused", COMPUTED[0]: "computed", DRAWN[0]: "drawn"}
"""Those that need no look at what became of them: a guess is accepted, or not judged yet."""


@dataclass(slots=True)
class CacheCounts:
    """What happened since the model was loaded; see `protocol.CacheTotals`."""

    reused: int = 0
    computed: int = 0
    recomputed: int = 0
    trims: int = 0
    trimmed: int = 0
    refused: int = 0
    forks: int = 0
    returns: int = 0

    def prompt_began(self, same: int, held: int) -> None:
        """A prompt goes on after `same` ids of a sequence of `held`."""
        self.reused += same
        if same < held:
            self.trims += 1
            self.trimmed += held - same
