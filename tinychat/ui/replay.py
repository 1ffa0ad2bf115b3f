"""The app that plays a recorded chat."""

from __future__ import annotations

from textual.screen import Screen

from tinychat.protocol import Engine, LoadModel
from tinychat.ui.app import ChatApp
from tinychat.ui.screens.replay import ReplayScreen


class ReplayApp(ChatApp):
    """The chat's app, on a recording."""

    def __init__(
        self,
        engine: Engine,
        load: LoadModel,
        *,
        about: str,
        raw: bool = False,
        theme: str | None = None,
        view: str | None = None,
    ) -> None:
        """Prepare the app; see `ChatApp`.

        Args:
            engine: The recording.
            load: The model that was talked to.
            about: What is played, as a sentence.
            raw: Whether texts were continued without a template.
            theme: The name of a theme.
            view: The view to open at once.
        """
        super().__init__(engine, load, raw=raw, theme=theme, view=view)
        self._about = about

    def get_default_screen(self) -> Screen[None]:
        """Begin with the recording."""
        return ReplayScreen(self._bridge, self._chat, self._about, self._view)
