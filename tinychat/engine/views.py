"""What somebody looks at while a reply is made, and what it costs: taps on some passes, and their events.

Statistics of the layers are of the tokens a screen can take, of each one while the reply is paused or stepped, and of
the last one. A profile is of one token in 16. All other passes run with closed taps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

import torch

from tinychat.engine.clocks import ATTENTION, MLP, ClockProbe
from tinychat.engine.layer_statistics import LayerProbe
from tinychat.engine.looking import Views
from tinychat.engine.pace import Pacer
from tinychat.engine.watch import Watch
from tinychat.models.probe import CLOSED, Probe
from tinychat.protocol import Event, LayerStatistics, Probed, Profiled

SHOWN_EVERY: Final = 0.05
"""Seconds between two tokens whose layers are looked at, where the reply plays."""
PROFILED: Final = 16
"""One token in so many is profiled."""


class ReplyWatch(Watch):
    """Looks at the passes of one reply."""

    def __init__(
        self,
        turn_id: int,
        layers: int,
        views: Views,
        pacer: Pacer,
        piece: Callable[[int], bytes],
        rows: int = 0,
    ) -> None:
        """Begin with the prompt.

        Args:
            turn_id: Of the reply.
            layers: Of the model.
            views: What is looked at.
            pacer: Holds the reply up.
            piece: Returns the bytes of a token, none of one that ends the reply.
            rows: How many rows of logits to keep, the latest.
        """
        self.rows: deque[torch.Tensor] = deque(maxlen=rows)
        """fp32 [V] each: what the latest tokens were chosen from."""
        self._turn_id = turn_id
        self._layers = layers
        self._views = views
        self._pacer = pacer
        self._piece = piece
        self._probe: Probe = CLOSED
        """Of the pass that decides the next token."""
        self._passes = 0
        self._due = 0.0
        self._choosing = self._chosen = 0.0
        self.told = -1
        """The last token whose layers were told of."""

    def probe(self, rows: int) -> Probe:
        """See `Watch`."""
        self._passes += 1
        views, now = self._views, time.perf_counter()
        every_layer = views.every_layer or ("layers" in views.wanted and self._pacer.stepped)
        if "time" in views.wanted and self._passes % PROFILED == 2 and not every_layer:  # the first is the prompt's
            self._probe = ClockProbe(self._layers)
        elif every_layer or ("layers" in views.wanted and now >= self._due):
            self._due = now + SHOWN_EVERY
            self._probe = LayerProbe(self._layers, rows)
        else:
            self._probe = CLOSED
        return self._probe

    def holds(self, next_token: Callable[[], int]) -> bool:
        """See `Watch`."""
        held = self._pacer.holds(lambda: self._piece(next_token()))
        self._choosing = time.perf_counter()
        return held

    def chosen_from(self, logits: torch.Tensor) -> None:
        """See `Watch`."""
        self.rows.append(logits)

    def chosen(self) -> None:
        """The next token is there."""
        self._chosen = time.perf_counter()

    def layers(self, row: int) -> tuple[LayerStatistics, ...]:
        """Return what the layers did at a row of the last pass; nothing, where nobody looked."""
        return self._probe.statistics(row) if isinstance(self._probe, LayerProbe) else ()

    def owes(self, index: int) -> bool:
        """Whether somebody waits for the layers of a token, and was not told of them."""
        return "layers" in self._views.wanted and self.told != index

    def tell(self, index: int, row: int) -> list[Event]:
        """Return the layers of a token, where somebody wants to see them and its pass was looked at."""
        layers = self.layers(row) if self.owes(index) else ()
        if not layers:
            return []
        self.told = index
        return [Probed(self._turn_id, index, layers)]

    def profile(self, index: int, row: int, seconds: float) -> list[Event]:
        """Return where the `seconds` of a token that was just chosen went, where its pass was profiled."""
        probe, sampling = self._probe, self._chosen - self._choosing
        if type(probe) is not ClockProbe or row:
            return []
        attention, mlp = (sum(each[part] for each in probe.seconds) for part in (ATTENTION, MLP))
        rest = max(0.0, seconds - attention - mlp - probe.head - sampling)
        return [Profiled(self._turn_id, index, *(1e3 * part for part in (attention, mlp, probe.head, sampling, rest)))]
