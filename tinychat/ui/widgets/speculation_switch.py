"""The switch that lets a model guess ahead."""

from __future__ import annotations

from textual.binding import Binding

from tinychat.ranges import SAMPLER_RANGES
from tinychat.ui.widgets.slider import Slider


class SpeculationSwitch(Slider):
    """`speculate     ●──────────      off`: a slider with a key that goes between off and on."""

    HELP = """
**Speculation.** Tokens are drafted from what the conversation says elsewhere (or by a second model, `--draft`), and the
model checks all of them at once. The reply is the same; where it quotes, it comes faster.

* `Space` or `Enter` on or off, from the very next token on
* `←` `→` how many tokens are drafted at most
* `r` back to what the chat began with
"""

    BINDINGS = [Binding("space,enter", "switch", "on/off", tooltip="Turn speculation on or off", id="speculate.switch")]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("speculate", "speculate", SAMPLER_RANGES["speculate"], names=((0, "off"),), id=id)
        self._on = int(self.limits.high)
        """What turning it on chooses: as many tokens as the last time."""

    def action_switch(self) -> None:
        """Turn it off, or on as far as it was."""
        if self.value:
            self._on = int(self.value)
            self.choose(0)
        else:
            self.choose(self._on)
