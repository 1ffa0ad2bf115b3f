"""Which head's attention a person looks at, and what the engine told of it: the part of `glass.py` for that view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from tinychat.protocol import Attend, Attended, Command
from tinychat.ui.inquiry import Inquiry

Mode = Literal["head", "mean", "maximum"]
"""Of one head; the mean of a layer's heads; the maximum over all heads of all layers."""
MODES: Final[tuple[Mode, ...]] = ("head", "mean", "maximum")


class AttentionFocus:
    """A mode, a layer and a head; they stay where they are while other tokens are looked at."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._inquiry = Inquiry(send)
        self.start_anew(0)

    def start_anew(self, layers: int) -> None:
        """Another model of so many layers is there: look at the mean of the middle one."""
        self._inquiry.forget()
        self._layers = layers
        self.mode: Mode = "mean"
        self.layer, self.head = layers // 2, 0
        self.attended: Attended | None = None
        """The latest answer."""

    def ask(self, turn_id: int, index: int) -> None:
        """Ask about a token, unless that was asked last; called again and again."""
        layer = None if self.mode == "maximum" else self.layer
        head = self.head if self.mode == "head" else None
        subject = turn_id, index, layer, head
        # As fast as it is answered: the engine has the weights of every head at hand.
        self._inquiry.want(subject, lambda n: Attend(n, turn_id, index, layer, head), least=0.0)

    def take(self, attended: Attended) -> None:
        """Take an answer."""
        if self._inquiry.answered(attended.request_id):
            self.attended = attended

    def next_mode(self) -> None:
        """Go from one head to the mean of its layer, to the maximum over all, and back."""
        self.mode = MODES[(MODES.index(self.mode) + 1) % len(MODES)]

    def move_layer(self, steps: int) -> None:
        """Look at another layer; where it was all of them, at the mean of the one looked at last."""
        if self.mode == "maximum":
            self.mode = "mean"
        else:
            self.layer = min(max(self.layer + steps, 0), max(0, self._layers - 1))

    def move_head(self, steps: int) -> None:
        """Look at another head of the layer; where it was several, at the one looked at last."""
        if self.mode != "head":
            self.mode = "head"
        elif self.attended is not None and self.attended.heads:
            self.head = (self.head + steps) % self.attended.heads

    def go(self, layer: int, head: int) -> None:
        """Look at this head."""
        self.mode, self.layer, self.head = "head", layer, head
