"""A recorded chat on the screen: what was recorded through one screen is played on another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from screen_driver import Chat, OpenChat, no_control_characters
from scripted_engine import ScriptedEngine

from tinychat.catalog import HubSource, ModelCard
from tinychat.engine.recorded import read
from tinychat.engine.recording import RecordedEngine
from tinychat.engine.replaying import ReplayEngine
from tinychat.protocol import LoadModel, SamplerSettings
from tinychat.ui.replay import ReplayApp
from tinychat.ui.screens import engine_screen

SIZES = [(80, 24), (160, 48)]
CARD = ModelCard("smollm2", HubSource("org/smollm2"))


class _Bare:
    def __init__(self, scripted: ScriptedEngine) -> None:
        self._scripted = scripted
        self.send = lambda command: ScriptedEngine.send(scripted, command)
        self.poll = lambda timeout=0.0: ScriptedEngine.poll(scripted, timeout)
        self.close = lambda timeout=0.3: True


class RecordingEngine(ScriptedEngine):
    """The same, as the screen sees it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._recorded = RecordedEngine(_Bare(self), path)

    def send(self, command: Any) -> None:
        self._recorded.send(command)

    def poll(self, timeout: float = 0.0) -> list[Any]:
        return self._recorded.poll(timeout)

    def close(self, timeout: float = 0.3) -> bool:
        return self._recorded.close(timeout)


Play = Callable[..., AbstractAsyncContextManager[Chat]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Return a function that opens the screen on a recording."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(engine_screen, "IDLE", 0.01)
    monkeypatch.setattr(engine_screen, "WAITING", 0.01)
    monkeypatch.setattr(engine_screen, "tick", lambda rate: 0.01)

    @asynccontextmanager
    async def opened(path: Path, size: tuple[int, int] = (120, 40), **options: Any) -> AsyncIterator[Chat]:
        engine = ReplayEngine(read(path))
        app = ReplayApp(engine, LoadModel(1, CARD), about="A recording of a test.", **options)
        app.animation_level = "none"
        async with app.run_test(size=size, notifications=True) as pilot:
            yield Chat(app, engine, pilot)  # type: ignore[arg-type]

    return opened


async def record(open_chat: OpenChat, path: Path) -> None:
    """Record a chat: a view is open at the second reply's end, and a slider is moved in its middle."""
    engine = RecordingEngine(path)
    async with open_chat(engine=engine, size=(120, 40)) as chat:
        await chat.ask("What is red?")
        await chat.answer("A colour of roses.")
        await chat.ask("And blue?")
        engine.prefill(20, 20)
        engine.say("The", " sky")
        await chat.shows("The sky")
        chat.screen.chat.set_sampler(SamplerSettings(temperature=1.25))
        engine.say(" and", " the", " sea")
        engine.finish("The sky and the sea", new_tokens=5)
        await chat.until(lambda: not chat.screen.chat.busy)
        await chat.press("f6", "w")
        await chat.until(lambda: chat.screen.glass.explained is not None)
        await chat.press("left")
        await chat.until(lambda: chat.screen.glass.explained.index == 3)
    engine.close()


def replies(chat: Chat) -> list[str]:
    return [turn.text for turn in chat.screen.chat.tree.path()]


SAID = ["What is red?", "A colour of roses.", "And blue?", "The sky and the sea"]


@pytest.mark.parametrize("size", SIZES)
async def test_the_same_chat_comes_again(
    open_chat: OpenChat, play: Play, tmp_path: Path, size: tuple[int, int]
) -> None:
    """Would catch: a turn that is missing, doubled or in another place, a view that has lost what was looked at."""
    path = tmp_path / "chat.jsonl"
    await record(open_chat, path)
    async with play(path, size=size) as chat:
        await chat.until(lambda: replies(chat) == SAID and not chat.screen.chat.busy)
        await chat.shows("The sky and the sea")
        await chat.shows("The recording ends here")
        assert chat.screen.sampler_panel.sampler.temperature == 1.25
        tokens = chat.screen.chat.replies[chat.screen.chat.tree.head or 0].tokens
        assert [token.piece for token in tokens] == [b"The", b" sky", b" and", b" the", b" sea"]
        await chat.press("f6", "w")
        await chat.until(lambda: chat.screen.glass.explained is not None)
        assert not chat.screen.glass.explained.problem
        await chat.press("left", "left")
        await chat.until(lambda: chat.screen.glass.explained.index == 2)
        assert "Nobody looked at this" in chat.screen.glass.explained.problem
        await chat.shows("Nobody looked")
        no_control_characters(chat)


async def test_typing_is_refused_and_kept(open_chat: OpenChat, play: Play, tmp_path: Path) -> None:
    """Would catch: a message that vanishes, or is sent to a recording."""
    path = tmp_path / "chat.jsonl"
    await record(open_chat, path)
    async with play(path) as chat:
        await chat.shows("The recording ends here")
        await chat.type("hello")
        assert chat.screen.editor.draft == "hello"
        await chat.press("enter")
        await chat.shows("A recording takes no new messages")
        assert chat.screen.editor.draft == "hello"
        assert replies(chat) == SAID
        await chat.press("ctrl+r", "ctrl+n", "f4", "ctrl+l")
        assert replies(chat) == SAID


async def test_it_pauses_steps_and_goes_on(open_chat: OpenChat, play: Play, tmp_path: Path) -> None:
    """Would catch: pacing keys that a recording doesn't obey, and a stop that shows less than was said."""
    path = tmp_path / "chat.jsonl"
    await record(open_chat, path)
    async with play(path) as chat:
        await chat.until(lambda: chat.screen.chat.info is not None)
        await chat.press("f7")
        await chat.shows("WAITS")
        assert replies(chat) == []
        await chat.press("f7")
        await chat.until(lambda: chat.screen.chat.busy)
        await chat.press("f7")
        await chat.until(lambda: chat.screen.chat.pacing.paused)
        at = chat.screen.chat.pacing.waits_at
        assert at is not None
        await chat.press("escape")
        await chat.until(lambda: replies(chat) == SAID[:2] and not chat.screen.chat.busy)
        await chat.shows("WAITS")
        await chat.press("f7")
        await chat.until(lambda: replies(chat) == SAID and not chat.screen.chat.busy)
