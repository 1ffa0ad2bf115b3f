"""The pace of a reply: paused, by single tokens or sentences, or at so many tokens a second."""

from __future__ import annotations

from typing import Final, Literal

from textual import getters, on

from tinychat.ui.conversation import Phase
from tinychat.ui.screens.engine_screen import EngineScreen
from tinychat.ui.widgets.pace_slider import FULL, PaceSlider
from tinychat.ui.widgets.setting import Setting

_RATES: Final = (1, 2, 4, 8, 16, 32)
"""Tokens a second that the keys go through; beyond the last there is no limit."""


class PaceScreen(EngineScreen):
    """Adds the keys that have a reply wait and go on."""

    pace_slider = getters.query_one(PaceSlider)

    def action_pause(self, _typed: bool = False) -> None:
        """Have the reply wait, or go on; where none is being made, the next one."""
        chat = self.chat
        chat.pacing.hold(not chat.pacing.holding, chat.busy)
        if not chat.busy:
            self.hint("The next reply waits before its first token." if chat.pacing.holding else "It will not wait.")
        self.show_activity()

    def action_step(self, mode: Literal["step", "sentence"], _typed: bool = False) -> None:
        """Make one token, or those to the end of the sentence, and wait."""
        if self.chat.busy:
            self.chat.pacing.step(mode)

    def action_rate(self, steps: int) -> None:
        """Play faster or slower."""
        rates = [*_RATES, FULL]
        value = self.pace_slider.value or FULL
        at = len(_RATES) if value == FULL else sum(rate < value for rate in _RATES)
        self.pace_slider.choose(rates[min(max(at + steps, 0), len(_RATES))])

    @on(Setting.Changed, "#pace")
    def _pace_changed(self, event: Setting.Changed) -> None:
        self.chat.pacing.set_rate(event.value or None, self.chat.busy)
        self.show_activity()

    def check_key(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys apply. Those with a `True` stand for letters and signs, which may be meant for the prompt."""
        busy = self.chat.busy and self.chat.phase is not Phase.STOPPING
        typed = bool(parameters) and parameters[-1] is True
        match action:
            case "pause":
                return (busy or not typed) and self.chat.info is not None
            case "step":
                return True if busy else False if typed else None
            case "rate":
                return busy
        return super().check_key(action, parameters)
