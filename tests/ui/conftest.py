"""What the tests of the screen share: a screen opened on a scripted engine."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from screen_driver import Chat, OpenChat
from scripted_engine import ScriptedEngine

from tinychat.catalog import HubSource, ModelCard
from tinychat.protocol import LoadModel
from tinychat.ui.app import ChatApp
from tinychat.ui.screens import engine_screen

CARD = ModelCard("smollm2", HubSource("org/smollm2"), summary="A small model")


@pytest.fixture
def open_chat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OpenChat:
    """Return a function that opens the screen on a scripted engine, the model loaded unless told otherwise."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # The screen looks at its engine as often as a test asks, so that most of a test isn't waiting.
    monkeypatch.setattr(engine_screen, "IDLE", 0.01)
    monkeypatch.setattr(engine_screen, "WAITING", 0.01)
    monkeypatch.setattr(engine_screen, "tick", lambda rate: 0.01)

    @asynccontextmanager
    async def opened(
        size: tuple[int, int] = (120, 40), loaded: bool = True, info: dict[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Chat]:
        engine = options.pop("engine", None) or ScriptedEngine()
        app = ChatApp(engine, LoadModel(0, options.pop("card", CARD)), **options)
        app.animation_level = "none"
        async with app.run_test(size=size, notifications=True) as pilot:
            chat = Chat(app, engine, pilot)
            if loaded:
                await chat.load(**(info or {}))
            yield chat

    return opened
