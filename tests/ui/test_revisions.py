"""Changing what was said, key by key: edits, going on, dictating, undo and redo, deletion, forks."""

from __future__ import annotations

import pytest
from screen_driver import Chat, OpenChat
from scripted_engine import INFO

from tinychat.protocol import Generate, Message

SIZES = pytest.mark.parametrize("size", [(80, 24), (160, 48)])


def turns(chat: Chat) -> list[str]:
    """What stands in the transcript, turn by turn."""
    return [view.text for view in chat.screen.views.values()]


@SIZES
async def test_a_question_is_edited_in_the_prompt(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: what followed an edited question deleted without a way back; a draft lost to the edit."""
    async with open_chat(size=size) as chat:
        await chat.ask("Hello")
        await chat.answer("Hi")
        await chat.ask("More")
        await chat.answer("Much")
        await chat.press("ctrl+up")
        await chat.type("a draft")
        await chat.press("alt+e")
        await chat.shows("EDITING your question")
        assert chat.screen.editor.draft == "Hello"
        await chat.type("!")
        await chat.press("enter")
        command = await chat.sent(Generate, 3)
        assert command.messages == (Message("user", "Hello!"),)
        assert chat.screen.editor.draft == "a draft"
        await chat.answer("Hi yourself")
        await chat.until(lambda: turns(chat) == ["Hello!", "Hi yourself"])
        await chat.shows("version 2 of 2")
        chat.screen.editor.clear_draft()
        await chat.press("alt+left")
        await chat.until(lambda: turns(chat) == ["Hello", "Hi", "More", "Much"])
        await chat.press("alt+u", "alt+u")
        await chat.until(lambda: turns(chat) == ["Hello", "Hi", "More", "Much"])
        await chat.press("alt+y")
        await chat.until(lambda: turns(chat) == ["Hello!", "Hi yourself"])


async def test_a_reply_is_edited_and_gone_on_from(open_chat: OpenChat) -> None:
    """Would catch: other words in the model's mouth that it isn't told, or can't go on from."""
    async with open_chat() as chat:
        await chat.ask("Hello")
        await chat.answer("Hi there")
        await chat.press("alt+a")
        await chat.shows("EDITING the model's reply")
        chat.screen.editor.clear_draft()
        await chat.type("Good")
        await chat.press("enter")
        await chat.until(lambda: turns(chat) == ["Hello", "Good"])
        await chat.shows("Written by you.")
        await chat.shows("version 2 of 2, version 1 edited")
        assert len(chat.engine.sent(Generate)) == 1
        await chat.press("alt+c")
        command = await chat.sent(Generate, 2)
        assert command.begin == Message("assistant", "Good")
        await chat.answer("Good day")
        await chat.until(lambda: turns(chat) == ["Hello", "Good day"])
        await chat.shows("version 3 of 3")


async def test_a_reply_that_was_stopped_is_gone_on_from(open_chat: OpenChat) -> None:
    """Would catch: a reply cut by Esc that can only be made anew; one that has ended gone on from into nothing."""
    async with open_chat() as chat:
        await chat.ask("Count")
        chat.engine.say("1", " 2")
        await chat.press("escape")
        chat.engine.finish("1 2", "cancelled")
        await chat.shows("Stopped by you.")
        await chat.press("alt+c")
        command = await chat.sent(Generate, 2)
        assert command.begin == Message("assistant", "1 2", (0, 1), INFO.vocabulary)
        assert command.sampler.seed == 77
        await chat.answer("1 2 3")
        await chat.until(lambda: turns(chat) == ["Count", "1 2 3"])
        await chat.press("alt+c")
        await chat.shows("has come to its end")
        assert len(chat.engine.sent(Generate)) == 2


async def test_a_reply_is_dictated(open_chat: OpenChat) -> None:
    """Would catch: a draft that is sent as a question, or a dictated start that replaces the old reply for good."""
    async with open_chat() as chat:
        await chat.press("alt+d")
        await chat.ask("Hello")
        await chat.answer("No.")
        await chat.press("alt+d")
        await chat.shows("Type how the reply shall begin")
        await chat.type("Sure")
        await chat.press("alt+d")
        command = await chat.sent(Generate, 2)
        assert command.begin == Message("assistant", "Sure")
        assert chat.screen.editor.draft == ""
        await chat.answer("Sure thing.")
        await chat.press("alt+left")
        await chat.until(lambda: turns(chat) == ["Hello", "No."])


@SIZES
async def test_undo_redo_and_deletion(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: an undo that forgets, a deletion without a way back, a question that can't be answered any more."""
    async with open_chat(size=size) as chat:
        await chat.press("alt+u")
        await chat.ask("Hello")
        await chat.press("alt+u")
        await chat.shows("One reply at a time")
        await chat.answer("Hi")
        await chat.press("alt+u")
        await chat.until(lambda: turns(chat) == [])
        await chat.shows("Undone")
        await chat.press("alt+y")
        await chat.until(lambda: turns(chat) == ["Hello", "Hi"])
        await chat.press("alt+x")
        await chat.until(lambda: turns(chat) == ["Hello"])
        await chat.shows("Alt+U brings it back")
        await chat.press("ctrl+r")
        await chat.sent(Generate, 2)
        await chat.answer("Hi again")
        await chat.until(lambda: turns(chat) == ["Hello", "Hi again"])
        await chat.press("alt+u", "alt+u")
        await chat.until(lambda: turns(chat) == ["Hello", "Hi"])


async def test_an_edit_can_be_left(open_chat: OpenChat) -> None:
    """Would catch: an Esc that stops or quits something else, a draft that is gone, and an edit of a live reply."""
    async with open_chat() as chat:
        await chat.ask("Hello")
        chat.engine.say("Hi")
        await chat.press("alt+a")
        await chat.shows("still being made")
        await chat.answer(" there")
        await chat.type("draft")
        await chat.press("alt+e", "alt+a")
        await chat.shows("EDITING the model's reply")
        await chat.press("escape")
        await chat.hides("EDITING")
        assert chat.screen.editor.draft == "draft"
        assert len(chat.screen.chat.tree) == 2
        await chat.press("alt+e", "ctrl+n")
        await chat.hides("EDITING")
        assert chat.screen.editor.draft == "draft"


async def test_a_base_models_reply_is_edited_as_it_is_shown(open_chat: OpenChat) -> None:
    """Would catch: a space that is typed by nobody, or one that the transcript of a base model lacks."""
    async with open_chat(info={"format": "base"}) as chat:
        await chat.ask("Hello")
        await chat.answer(" Hi")
        await chat.press("alt+a")
        assert chat.screen.editor.draft == "Hi"
        await chat.type("!")
        await chat.press("enter")
        await chat.until(lambda: turns(chat) == ["Hello", " Hi!"])


async def test_the_palette_has_them_all(open_chat: OpenChat) -> None:
    """Would catch: an action that only those find whose terminal sends Alt."""
    async with open_chat() as chat:
        await chat.ask("Hello")
        await chat.answer("Hi")
        titles = [command.title for command in chat.app.get_system_commands(chat.screen)]
        for title in ("Edit question", "Edit reply", "Continue", "Dictate", "Undo", "Delete reply", "Fork", "Chats"):
            assert any(each.startswith(f"{title} (Alt+") for each in titles), (title, titles)
        await chat.screen.run_action("edit('question')")
        await chat.shows("EDITING your question")
