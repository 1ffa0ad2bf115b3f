"""How many tokens a second a reply is played at."""

from __future__ import annotations

from typing import Final

from tinychat.ranges import Range
from tinychat.ui.widgets.slider import Slider

FULL: Final = 0
"""The value that stands for: as fast as the machine can."""


class PaceSlider(Slider):
    """`pace          ●──────────     full`: at the left end there is no limit."""

    HELP = """
**Pace.** At most so many tokens a second, from the very next one on; at the left end, as fast as the machine can.

* `←` `→` slower, faster; or type a number and press `Enter`
* `F7` has the reply wait or go on, `F8` makes one token and waits
"""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("rate", "pace", Range(FULL, 1000, 1), high=40, names=((FULL, "full"),), id=id)
        self.default = FULL

    def describe(self) -> str:
        """Return the rate with its unit."""
        return super().describe() if not self.value else f"{self.value:g} tok/s"
