"""Where the time of a pass goes: clocks at the taps.

A tap ends a stretch of time; what a probe itself does at a tap is not counted. Norms count to the sublayer they stand
before, the last one to the head.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Final

from tinychat.models.probe import Probe, Tapped

ATTENTION: Final = 0
MLP: Final = 1
_BEGIN: Final = "hook_embed"
_HEAD: Final = "unembed.hook_out"


@cache
def _ends(layers: int) -> dict[str, tuple[int, int]]:
    """Return the taps that end a sublayer: name -> (layer, sublayer)."""
    found = {f"blocks.{layer}.hook_attn_out": (layer, ATTENTION) for layer in range(layers)}
    return found | {f"blocks.{layer}.hook_mlp_out": (layer, MLP) for layer in range(layers)}


class ClockProbe(Probe):
    """Keeps time, and no tensor."""

    def __init__(self, layers: int) -> None:
        """Begin; the clock starts when the embedding is there."""
        super().__init__(())
        self.seconds = [[0.0, 0.0] for _ in range(layers)]
        """Of each layer: attention, MLP."""
        self.head = 0.0
        """Seconds of the last norm and the head."""
        self._ends = _ends(layers)
        self._stretch = 0.0
        self._since = 0.0

    def __bool__(self) -> bool:
        return True

    def __call__(self, name: str, tapped: Tapped) -> None:
        """Stop the clock, look, and start it again; taps that are of no interest let it run."""
        now = time.perf_counter()
        end = self._ends.get(name)
        if end is None and not self.listens(name) and name not in (_BEGIN, _HEAD):
            return
        self._stretch += now - self._since
        if end is not None:
            self.seconds[end[0]][end[1]] = self._stretch
        elif name == _HEAD:
            self.head = self._stretch
        if end is not None or name in (_BEGIN, _HEAD):
            self._stretch = 0.0
        if self.listens(name):
            self.look(name, tapped)
        self._since = time.perf_counter()

    def listens(self, name: str) -> bool:
        """Whether `look` is to be told of a tensor."""
        del name
        return False

    def look(self, name: str, tapped: Tapped) -> None:
        """Look at a tensor."""
