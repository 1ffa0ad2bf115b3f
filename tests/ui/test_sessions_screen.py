"""Chats that are kept: saved as they grow, found again, gone on with, renamed, deleted; and private ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nasty import NASTY
from screen_driver import Chat, OpenChat, no_control_characters
from scripted_engine import INFO

from tinychat.chats import Tree
from tinychat.chats.recorder import Recorder
from tinychat.chats.session import Session
from tinychat.chats.store import Store
from tinychat.protocol import Generate, SamplerSettings, SetSampler, TurnFinished
from tinychat.ui.foreign_text import one_line
from tinychat.ui.screens.sessions import SessionsScreen

SIZES = pytest.mark.parametrize("size", [(80, 24), (160, 48)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@pytest.fixture
def recorder(path: Path) -> Iterator[Recorder]:
    made = Recorder(path)
    yield made
    made.close(10)


def kept(path: Path, *exchanges: tuple[str, str], model: str = "smollm2", title: str = "", system: str = "") -> int:
    """Put a chat into the file; return its number."""
    tree = Tree(system)
    for question, answer in exchanges:
        tree.ask(question)
        reply = tree.answer().turn_id
        tree.finish(
            TurnFinished(reply, "cancelled", (7, 8), answer, "", 9, 0, 2, 0.1, 0.1, 0.1, 5, "torch"),
            INFO.vocabulary,
            model,
        )
    with Store(path) as store:
        return store.save(Session(tree.state(), title, model, "", SamplerSettings(temperature=1.25))).session_id


def turns(chat: Chat) -> list[str]:
    return [view.text for view in chat.screen.views.values()]


def texts(path: Path, number: int) -> list[str]:
    if not path.exists():
        return []
    with Store(path) as store:
        if number not in [each.session_id for each in store.summaries()]:
            return []
        return [turn.text for turn in store.read(number).session.tree.turns]


async def test_a_chat_is_saved_while_it_grows(open_chat: OpenChat, recorder: Recorder, path: Path) -> None:
    """Would catch: a chat that is only saved at its end; a file for a chat in which nothing was said."""
    async with open_chat(recorder=recorder) as chat:
        await chat.pilot.pause(0.3)
        assert not path.exists()
        await chat.ask("Hello")
        chat.engine.say("One", " two")
        await chat.until(lambda: texts(path, 1) == ["Hello", "One two"])
        chat.engine.say(" three")
        await chat.until(lambda: texts(path, 1) == ["Hello", "One two three"])
        await chat.answer(" four")
        await chat.press("ctrl+n")
        await chat.ask("Another")
        await chat.until(lambda: texts(path, 2) == ["Another", ""])
        chat.engine.say("left")
        await chat.shows("left▌")
        await chat.press("ctrl+n")
        await chat.until(lambda: texts(path, 2) == ["Another", "left"])
    with Store(path) as store:
        reply = store.read(1).session.tree.turns[1]
        assert (reply.ids, reply.seed, reply.reason, reply.model) == ((0,), 77, "eos", "smollm2")
        assert store.read(2).session.tree.turns[1].reason == "cancelled"


async def test_leaving_saves_what_was_said_last(open_chat: OpenChat, recorder: Recorder, path: Path) -> None:
    """Would catch: the words of the last quarter of a second, lost with every quit in mid-reply."""
    async with open_chat(recorder=recorder) as chat:
        await chat.ask("Hello")
        chat.engine.say("some", " words")
        await chat.shows("some words▌")
        await chat.press("ctrl+q")
    recorder.close(10)
    assert texts(path, 1) == ["Hello", "some words"]


@SIZES
async def test_a_chat_is_found_and_gone_on_with(
    open_chat: OpenChat, recorder: Recorder, path: Path, size: tuple[int, int]
) -> None:
    """Would catch: a list without the chat, a chat that comes back without its ids, settings or versions."""
    first = kept(
        path, ("What is the capital of France?", "Paris, of course."), ("And of Spain?", "Madrid"), system="Be brief."
    )
    kept(path, ("Hello", "Hi"))
    async with open_chat(recorder=recorder, size=size) as chat:
        await chat.press("alt+s")
        await chat.shows("What is the capital of France?")
        await chat.shows("4 turns · smollm2")
        await chat.type("course par")
        await chat.until(lambda: "Hello" not in chat.text)
        await chat.shows("Paris, of course.")
        await chat.press("enter")
        await chat.until(
            lambda: turns(chat) == ["What is the capital of France?", "Paris, of course.", "And of Spain?", "Madrid"]
        )
        await chat.shows("Going on with")
        assert chat.screen.chat.tree.system == "Be brief."
        assert chat.engine.sent(SetSampler)[-1].sampler == SamplerSettings(temperature=1.25)
        await chat.ask("More")
        command = await chat.sent(Generate)
        assert [message.ids for message in command.messages] == [(), (), (7, 8), (), (7, 8), ()]
        await chat.answer("Much")
        await chat.until(lambda: texts(path, first)[4:] == ["More", "Much"])
        await chat.press("alt+u", "alt+u")
        await chat.until(lambda: turns(chat) == ["What is the capital of France?", "Paris, of course."])
    with Store(path) as store:
        assert len(store.summaries()) == 2, "it went on in its own session"


async def test_a_chat_is_gone_on_with_from_the_start(open_chat: OpenChat, recorder: Recorder, path: Path) -> None:
    """Would catch: `--session` that forgets what was said, how it was set, or where it is kept."""
    number = kept(path, ("Hello", "Hi"), model="org/other")
    with Store(path) as store:
        saved = store.read(number)
    async with open_chat(recorder=recorder, resume=saved, loaded=False) as chat:
        await chat.shows("Going on with “Hello”")
        assert turns(chat) == ["Hello", "Hi"]
        await chat.shows("It was with org/other")
        await chat.shows("Stopped by you.")
        await chat.load()
        assert chat.screen.sampler_panel.sampler.temperature == 1.25
        await chat.shows("this chat")
        await chat.press("alt+c")
        await chat.sent(Generate)
        await chat.answer("Hi there")
        await chat.until(lambda: texts(path, number) == ["Hello", "Hi", "Hi there"])


async def test_renaming_deleting_and_bringing_back(open_chat: OpenChat, recorder: Recorder, path: Path) -> None:
    """Would catch: a deletion without a way back, a chat deleted under the person who is in it, a lost title."""
    kept(path, ("Hello", "Hi"))
    async with open_chat(recorder=recorder) as chat:
        await chat.ask("This one")
        await chat.answer("Yes")
        await chat.press("alt+s")
        await chat.shows("on the screen")
        await chat.press("f8")
        await chat.shows("This chat is on the screen.")
        await chat.press("down", "f2")
        await chat.shows("Enter gives the chat this title")
        await chat.type(" again")
        await chat.press("enter")
        await chat.shows("Hello again")
        await chat.press("f8")
        await chat.hides("Hello again")
        await chat.press("ctrl+z")
        await chat.shows("Hello again")
        await chat.press("f2")
        await chat.type("x")
        await chat.press("escape")
        await chat.hides("Hello againx")
        assert isinstance(chat.app.screen, SessionsScreen)
        await chat.press("escape")
        assert chat.app.screen is chat.screen


async def test_a_fork_is_a_chat_of_its_own(open_chat: OpenChat, recorder: Recorder, path: Path) -> None:
    """Would catch: a fork that takes the words of the chat it came from, or writes into it."""
    async with open_chat(recorder=recorder) as chat:
        await chat.ask("One")
        await chat.answer("1")
        await chat.ask("Two")
        await chat.answer("2")
        await chat.press("ctrl+up", "alt+f")
        await chat.until(lambda: turns(chat) == ["One", "1"])
        await chat.shows("A chat of its own from here on")
        await chat.ask("Deux")
        await chat.answer("II")
        await chat.until(lambda: texts(path, 2) == ["One", "1", "Deux", "II"])
        assert texts(path, 1) == ["One", "1", "Two", "2"]
        await chat.press("alt+s")
        await chat.shows("One (fork)")


async def test_a_private_chat_is_nowhere(open_chat: OpenChat, path: Path, tmp_path: Path) -> None:
    """Would catch: a file that `--private` leaves behind."""
    async with open_chat(private=True) as chat:
        await chat.shows("This is a private chat")
        await chat.ask("secret")
        await chat.answer("noted")
        await chat.press("alt+s")
        await chat.shows("nothing of it is kept")
        await chat.press("alt+f")
        await chat.pilot.pause(0.3)
        assert len(chat.screen.views) == 2
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


@pytest.mark.parametrize("kind", ["folder", "damaged"])
async def test_where_nothing_can_be_saved_the_chat_goes_on(open_chat: OpenChat, tmp_path: Path, kind: str) -> None:
    """Would catch: a chat that ends with its file, or one that says nothing about it."""
    path = tmp_path / "data" / "chats.db"
    if kind == "damaged":
        path.parent.mkdir()
        path.write_bytes(b"no database " * 1000)
    else:
        path.parent.write_text("a file where a folder has to be")
    recorder = Recorder(path)
    async with open_chat(recorder=recorder, size=(120, 48)) as chat:
        await chat.ask("Hello")
        await chat.shows("This chat is not being saved.")
        await chat.answer("Hi")
        await chat.ask("More")
        await chat.answer("Much")
        assert chat.text.count("not being saved") == 1
        await chat.press("alt+s")
        await chat.shows("is damaged" if kind == "damaged" else "No chat was kept yet.")
        await chat.press("escape")
        await chat.ask("And on")
    recorder.close(5)


async def test_foreign_titles_and_texts_are_inert_in_the_list(
    open_chat: OpenChat, recorder: Recorder, path: Path
) -> None:
    """Would catch: markup parsed and control characters passed on in a title, a snippet or a search."""
    for text in NASTY:
        kept(path, (f"q {text}", f"needle {text}"), title=text, model=text)
    async with open_chat(recorder=recorder, size=(160, 60)) as chat:
        await chat.press("alt+s")
        await chat.shows(one_line(NASTY[-2]))
        for _ in NASTY:
            await chat.press("down")
            no_control_characters(chat)
        await chat.type("needle")
        await chat.shows("needle " + one_line(NASTY[-2]))
        for _ in NASTY:
            await chat.press("down")
            no_control_characters(chat)
        chat.app.screen.query_one("Editor").put(f"{NASTY[-3]} nowhere")  # type: ignore[attr-defined]
        await chat.shows("Nothing was found.")
        no_control_characters(chat)
        await chat.press("escape")
        assert chat.app.is_running
