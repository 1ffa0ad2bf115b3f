"""The hands of a test on a running screen."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from scripted_engine import ScriptedEngine
from textual.pilot import Pilot

from tinychat.protocol import LoadModel
from tinychat.ui.app import ChatApp
from tinychat.ui.screens.chat import ChatScreen


class Chat:
    """A running screen and the hands on it."""

    def __init__(self, app: ChatApp, engine: ScriptedEngine, pilot: Pilot[None]) -> None:
        self.app = app
        self.engine = engine
        self.pilot = pilot

    @property
    def screen(self) -> ChatScreen:
        screen = self.app.screen_stack[0]
        assert isinstance(screen, ChatScreen)
        return screen

    @property
    def text(self) -> str:
        """Everything that is on the screen, line by line; no-break spaces are spaces to the eye."""
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips()).replace("\xa0", " ")

    async def until(self, holds: Callable[[], object], seconds: float = 10.0) -> None:
        """Wait until something holds; fail, showing the screen, where it doesn't within `seconds`."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"still not so:\n{self.text}"
            await self.pilot.pause(0.01)

    async def shows(self, text: str) -> None:
        """Wait until a text is on the screen."""
        await self.until(lambda: text in self.text)

    async def hides(self, text: str) -> None:
        """Wait until a text is not on the screen."""
        await self.until(lambda: text not in self.text)

    async def sent(self, kind: type[Any], times: int = 1) -> Any:
        """Wait until the engine was sent so many commands of a kind; return the last."""
        await self.until(lambda: len(self.engine.sent(kind)) >= times)
        return self.engine.sent(kind)[-1]

    async def press(self, *keys: str) -> None:
        """Press keys."""
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Type a text."""
        await self.pilot.press(*(" " if c == " " else c for c in text))

    async def load(self, **info: Any) -> None:
        """Have the engine say that the model is ready."""
        await self.sent(LoadModel)
        self.engine.ready(**info)
        await self.until(lambda: self.screen.chat.info is not None)

    async def ask(self, text: str) -> None:
        """Put a question into the prompt and send it."""
        before = self.screen.chat.live
        self.screen.editor.put(text)
        await self.press("enter")
        await self.until(lambda: self.screen.chat.live not in (None, before))

    async def answer(self, text: str, **finish: Any) -> None:
        """Have the engine give a whole reply."""
        self.engine.say(text)
        self.engine.finish(text, **finish)
        await self.until(lambda: not self.screen.chat.busy)


def no_control_characters(chat: Chat) -> None:
    """Nothing on the screen is a character that a terminal obeys."""
    for strip in chat.app.screen._compositor.render_strips():
        for segment in strip:
            assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in segment.text), repr(segment.text)
            assert not any("\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069" for c in segment.text)
            assert segment.style is None or not segment.style.link
            assert segment.style is None or "@click" not in segment.style.meta


OpenChat = Callable[..., AbstractAsyncContextManager[Chat]]
"""The fixture `open_chat`: opens the screen on a scripted engine."""
