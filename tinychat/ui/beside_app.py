"""The app with two conversations in place of one."""

from __future__ import annotations

from textual.screen import Screen

from tinychat.protocol import Engine, Limits, LoadModel
from tinychat.ui.app import ChatApp
from tinychat.ui.bridge import Bridge
from tinychat.ui.conversation import Conversation
from tinychat.ui.pair import Pair
from tinychat.ui.screens.beside_screen import BesideScreen


class BesideApp(ChatApp):
    """Two models, or one in two forms or with two sets of settings, asked the same."""

    CSS_PATH = ["screens/chat.tcss", "screens/beside.tcss"]

    def __init__(
        self,
        engines: tuple[Engine, Engine],
        loads: tuple[LoadModel, LoadModel],
        *,
        system: str = "",
        limits: Limits | None = None,
        think: bool | None = None,
        raw: bool = False,
        theme: str | None = None,
    ) -> None:
        """Prepare the app.

        Args:
            engines: Of A and B; they share a thread.
            loads: Their models.
            system: The system prompt of both, empty for none.
            limits: When replies end.
            think: What thinking models are told; None leaves it to their template.
            raw: Continue the text as it is, without a template.
            theme: The name of a theme.
        """
        super().__init__(engines[0], loads[0], system=system, limits=limits, think=think, raw=raw, theme=theme)
        self._bridges = self._bridge, Bridge(engines[1])
        other = Conversation(self._bridges[1].send, loads[1], system=system, limits=limits, think=think, raw=raw)
        self._pair = Pair(self._chat, other)

    def get_default_screen(self) -> Screen[None]:
        """Begin with both."""
        return BesideScreen(self._bridges, self._pair)

    def _leave(self, status: int) -> None:
        self._pair.stop()
        super()._leave(status)
