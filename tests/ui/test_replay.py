"""A recorded chat on the screen: what was recorded through one screen is played on another."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nasty import NASTY
from screen_driver import Chat, OpenChat, no_control_characters
from scripted_engine import INFO, ScriptedEngine

from tinychat.catalog import HubSource, ModelCard
from tinychat.engine.recorded import Entry, Recording, read
from tinychat.engine.recording import RecordedEngine
from tinychat.engine.replaying import ReplayEngine
from tinychat.protocol import (
    Bandwidth,
    CacheStats,
    EngineFailed,
    Generate,
    LoadModel,
    MemoryStats,
    Message,
    ModelReady,
    Notice,
    Paused,
    Piece,
    PrefillProgress,
    Probed,
    Profiled,
    SamplerSettings,
    SetSampler,
    TokenEmitted,
    Tokenize,
    Tokenized,
    TurnFinished,
)
from tinychat.ui.glass import VIEWS
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
    async def opened(
        played: Path | Recording, size: tuple[int, int] = (120, 40), clock: Any = time.monotonic, **options: Any
    ) -> AsyncIterator[Chat]:
        engine = ReplayEngine(played if isinstance(played, Recording) else read(played), clock=clock)
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


class Clock:
    """Seconds, as a test wants them."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def by_hand(*said: Any) -> Recording:
    """Return a recording in which something passes every second."""
    ready = ModelReady(1, INFO, SamplerSettings(), ())
    entries = [LoadModel(1, CARD), ready, *said]
    return Recording(Path("a.jsonl"), tuple(Entry(float(at), each) for at, each in enumerate(entries)), "0.1.0", "")


def spoken(turn: int, *words: str) -> list[Any]:
    """Return the events of a reply, a token a second."""
    tokens = [
        TokenEmitted(turn, index, index, word.encode("utf-8", "surrogatepass"), word, seconds=1.0, logprob=-1.0)
        for index, word in enumerate(words)
    ]
    text, count = "".join(words), len(words)
    end = TurnFinished(turn, "eos", tuple(range(count)), text, "", 5, 0, count, 0.1, 0.4, 0.1, 7, "numba")
    return [PrefillProgress(turn, 5, 5, 0), *tokens, end]


def user(text: str) -> Message:
    return Message("user", text)


async def test_it_pauses_steps_and_goes_on(play: Play) -> None:
    """Would catch: pacing keys that a recording doesn't obey, and a stop that shows less than was said."""
    clock = Clock()
    first = [Generate(2, (user("one"),)), *spoken(2, "a", "b", "c")]
    history = (user("one"), Message("assistant", "abc", (0, 1, 2), INFO.vocabulary), user("two"))
    async with play(by_hand(*first, Generate(4, history), *spoken(4, "d", "e")), clock=clock) as chat:
        await chat.until(lambda: chat.screen.chat.info is not None)
        await chat.press("f7")
        clock.now += 5
        await chat.shows("WAITS")
        assert replies(chat) == []
        await chat.press("space")
        clock.now += 1
        await chat.until(lambda: chat.screen.chat.busy)
        await chat.press("space")
        clock.now += 5
        await chat.shows("PAUSED before token 1")
        await chat.press("full_stop")
        await chat.shows("PAUSED before token 2")
        assert len(chat.screen.chat.replies[2].tokens) == 1
        await chat.press("escape")
        await chat.until(lambda: replies(chat) == ["one", "abc"] and not chat.screen.chat.busy)
        clock.now += 5
        await chat.shows("WAITS")
        await chat.press("f7")
        clock.now += 1
        await chat.until(lambda: chat.screen.chat.busy)
        for _ in range(4):
            clock.now += 1
            await chat.pilot.pause(0.05)
        await chat.until(lambda: replies(chat) == ["one", "abc", "two", "de"] and not chat.screen.chat.busy)


async def test_versions_branches_and_new_chats_come_again(play: Play) -> None:
    """Would catch: a second version that stands below the first as if it were said next; a new chat that goes on."""
    asked = Generate(2, (user("one"),))
    branch = replace(asked, turn_id=4, forced_ids=(0, 9), branch_of=2)
    dictated = replace(asked, turn_id=6, begin=Message("assistant", "So"))
    said = Message("assistant", "So!", (0, 1), INFO.vocabulary)
    goes_on = replace(asked, turn_id=7, begin=said, branch_of=6)
    other = Generate(9, (Message("system", "Be brief."), user("else")))
    recording = by_hand(
        *[asked, *spoken(2, "a", "b"), replace(asked, turn_id=3), *spoken(3, "c")],
        *[branch, *spoken(4, "a", "z"), dictated, *spoken(6, "So", "!")],
        *[goes_on, *spoken(7, "So", "!", " On"), other, *spoken(9, "x")],
    )
    clock = Clock()
    async with play(recording, clock=clock) as chat:
        seen: list[list[str]] = []
        while "The recording ends here" not in chat.text:
            clock.now += 1
            await chat.pilot.pause(0.03)
            if not chat.screen.chat.busy and replies(chat) not in ([], *seen):
                seen.append(replies(chat))
            assert len(seen) < 9
        assert seen == [["one", "ab"], ["one", "c"], ["one", "az"], ["one", "So!"], ["one", "So! On"], ["else", "x"]]
        assert chat.screen.chat.tree.system == "Be brief."
        await chat.shows("new chat")
        shown = [view.turn.text for view in chat.screen.views.values()]
        assert shown == ["else", "x"]


async def test_a_history_that_was_not_recorded_is_shown_all_the_same(play: Play) -> None:
    """Would catch: a chat that was opened from the kept ones, played without what was said before."""
    history = (user("before"), Message("assistant", "said"), user("now"))
    clock = Clock()
    async with play(by_hand(Generate(8, history), *spoken(8, "yes")), clock=clock) as chat:
        while "The recording ends here" not in chat.text:
            clock.now += 1
            await chat.pilot.pause(0.03)
        assert replies(chat) == ["before", "said", "now", "yes"]
        await chat.shows("before")


async def test_raw_texts_go_on(play: Play) -> None:
    """Would catch: a base model's text doubled, since each command holds all of it."""
    first, second = Generate(2, (user("Once"),), raw=True), Generate(4, (user("Once upon time"),), raw=True)
    clock = Clock()
    async with play(by_hand(first, *spoken(2, " upon"), second, *spoken(4, " .")), clock=clock, raw=True) as chat:
        while "The recording ends here" not in chat.text:
            clock.now += 1
            await chat.pilot.pause(0.03)
        assert replies(chat) == ["Once", " upon", " time", " ."]


async def test_what_was_typed_is_typed_again(play: Play) -> None:
    """Would catch: the prompt of then that stays empty, one that writes over what somebody types now."""
    pieces = (Piece(1, b"He", 0), Piece(2, b"llo", 2))
    typed = [Tokenize(1, "Hello"), Tokenized(1, pieces), Generate(2, (user("Hello"),)), *spoken(2, "a")]
    clock = Clock()
    async with play(by_hand(*typed), clock=clock) as chat:
        await chat.until(lambda: chat.screen.chat.info is not None)
        clock.now += 0.2
        await chat.until(lambda: chat.screen.editor.draft == "Hello")
        await chat.shows("tokens 2")
        clock.now += 3
        await chat.until(lambda: replies(chat)[:1] == ["Hello"])
        assert chat.screen.editor.draft == ""
    async with play(by_hand(*typed), clock=clock) as chat:
        await chat.until(lambda: chat.screen.chat.info is not None)
        await chat.type("mine")
        clock.now += 0.2
        await chat.pilot.pause(0.2)
        clock.now += 3
        await chat.until(lambda: replies(chat)[:1] == ["Hello"])
        assert chat.screen.editor.draft == "mine"


@pytest.mark.parametrize("size", SIZES)
async def test_hostile_text_and_numbers_are_shown_safely(play: Play, size: tuple[int, int]) -> None:
    """Would catch: a recording from anybody that moves the terminal's cursor, or ends the screen with a traceback."""
    text, huge = "".join(NASTY), 2**63 - 1
    info = replace(INFO, name=text, dtype_reason=text, notices=(text,), context=1, layers=0, model_context=-huge)
    token = TokenEmitted(2, huge, huge, text.encode("utf-8", "replace"), text, text, math.nan, -huge, -math.inf)
    recording = by_hand(
        *[ModelReady(7, info, SamplerSettings(), ((text, text),)), Notice(text), SetSampler(SamplerSettings(seed=0))],
        *[Tokenize(1, text), TokenEmitted(77, 0, 0, b"", text), TurnFinished(77, "eos", (), text, "", *[-1] * 8, text)],
        *[Generate(2, (Message("tool", text), user(text), user(text)), branch_of=99, forced_ids=(huge,))],
        *[
            PrefillProgress(2, huge, -1, huge),
            CacheStats((), -huge),
            MemoryStats(-1, -2, 0, -huge, 0),
            Profiled(2, -1, *[-1.0] * 5),
        ],
        *[
            token,
            replace(token, index=-3, seconds=-1e300, drafted=-1),
            Probed(2, -1, ()),
            Paused(2, 3),
            Bandwidth(-1.0, 0),
        ],
        *[TurnFinished(2, "eos", (huge,), text, text, -1, huge, -huge, -1.0, math.inf, math.nan, huge, text)],
        *[
            Generate(2, ()),
            EngineFailed(text, text, text, turn_id=2),
            Generate(3, (Message("system", text),), raw=True),
        ],
    )
    clock = Clock()
    async with play(recording, clock=clock, size=size) as chat:
        while "The recording ends here" not in chat.text:
            clock.now += 5
            await chat.pilot.pause(0.03)
            no_control_characters(chat)
        await chat.press("ctrl+up", "f6")
        for key in VIEWS.values():
            await chat.press(key, "left", "right")
            await chat.pilot.pause(0.05)
            no_control_characters(chat)
        assert chat.app.is_running
