"""The seed of the random numbers: fixed, or another one each reply."""

from __future__ import annotations

from textual.binding import Binding

from tinychat.protocol import MAX_SEED
from tinychat.ui.widgets.setting import Setting


class SeedEntry(Setting):
    """`seed   random (1234567)`: with what the last reply drew."""

    HELP = """
**The seed.** With a fixed seed, the same conversation and the same settings give the same reply.

* type a number and press `Enter` to fix it
* `l` fixes the one that the last reply drew
* `r` back to another one each reply
"""

    BINDINGS = [Binding("l", "keep_last", "the last one", tooltip="Fix the seed of the last reply", id="seed.last")]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("seed", "seed", id=id)
        self.last: int | None = None
        """The seed of the last reply."""

    def show_last(self, seed: int) -> None:
        """Show what the last reply drew."""
        self.last = seed
        self.update_lines()

    def check(self, text: str) -> int:
        """Return the typed seed; digits alone, since a float can't hold every seed."""
        if not text.isdecimal() or int(text) > MAX_SEED:
            raise ValueError(f"seed is {text!r}, but has to be a whole number from 0 to {MAX_SEED}.")
        return int(text)

    def describe(self) -> str:
        """Return the fixed seed, or that it is random."""
        if self.value is not None:
            return f"{self.value:d}"
        return "random" if self.last is None else f"random ({self.last})"

    def action_keep_last(self) -> None:
        """Fix the seed of the last reply."""
        if self.last is not None:
            self.choose(self.last)
