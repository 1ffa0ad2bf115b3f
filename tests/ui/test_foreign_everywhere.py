"""Strings that broke other programs, through every place of the screen that shows text which is not ours.

Each is to be seen as it is, brackets and all, and none may crash the app, run an action, or reach the terminal raw.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from nasty import CONTROL, NASTY
from screen_driver import Chat, OpenChat, no_control_characters

from tinychat.catalog import HubSource, ModelCard
from tinychat.protocol import DownloadProgress, LoadModel, ModelLoading, Notice, Piece, Tokenize, Tokenized
from tinychat.ui.foreign_text import one_line


async def question_and_reply(chat: Chat, text: str) -> None:
    chat.screen.editor.put(text)
    await chat.pilot.pause()
    no_control_characters(chat)
    await chat.press("enter")
    await chat.until(lambda: chat.screen.chat.busy)
    for character in text:
        chat.engine.say(character)
    await chat.shows(f"{one_line(text)}▌")
    no_control_characters(chat)
    chat.engine.finish(text)
    await chat.until(lambda: not chat.screen.chat.busy)
    no_control_characters(chat)
    await chat.press("f5")  # raw
    await chat.until(lambda: chat.text.count(one_line(text)) >= 2)
    await chat.press("ctrl+n")
    await chat.hides("seed 77")


async def thinking(chat: Chat, text: str) -> None:
    await chat.ask("a")
    chat.engine.say(text, thinking=True)
    await chat.shows("thinking, ")
    await chat.press("ctrl+t")
    await chat.shows(one_line(text))
    chat.engine.finish("b", thinking=text)
    await chat.until(lambda: not chat.screen.chat.busy)
    await chat.shows(one_line(text))
    await chat.press("ctrl+n")
    await chat.hides("seed 77")


async def notice_and_error(chat: Chat, text: str) -> None:
    chat.engine.emit(Notice(f"Notice {text}."))
    chat.engine.fail(f"File {text} is broken.", f"Remove {text}.")
    await chat.shows(f"Notice {one_line(text)}.")
    await chat.shows(f"File {one_line(text)} is broken.")
    await chat.shows(f"Remove {one_line(text)}.")
    await chat.press("ctrl+n")
    await chat.hides("Notice")


async def toast(chat: Chat, text: str) -> None:
    chat.app.notify(f"Toast {text}", title=text, timeout=60)
    await chat.shows(f"Toast {one_line(text)}")
    no_control_characters(chat)
    chat.app.clear_notifications()
    await chat.hides("Toast")


async def hint(chat: Chat, text: str) -> None:
    chat.screen.status.hint(f"Hint {text}")
    await chat.shows(f"Hint {one_line(text)}")


async def chips(chat: Chat, text: str) -> None:
    chat.screen.editor.put(text)
    data = text.encode()
    await chat.until(lambda: chat.engine.sent(Tokenize) and chat.engine.sent(Tokenize)[-1].text == text)
    request = chat.engine.sent(Tokenize)[-1].request_id
    rest = (Piece(None, data[1:], 1),) if data[1:] else ()
    chat.engine.emit(Tokenized(request, (Piece(5, data[:1], 0), *rest)))
    await chat.shows("tokens 1")
    await chat.pilot.pause()
    no_control_characters(chat)
    chat.screen.editor.clear_draft()
    await chat.pilot.pause()


async def system_prompt(chat: Chat, text: str) -> None:
    await chat.press("f4")
    await chat.shows("System prompt")
    editor = chat.app.screen.query_one("Editor")
    editor.clear_draft()  # type: ignore[attr-defined]
    editor.put(text)  # type: ignore[attr-defined]
    await chat.pilot.pause()
    no_control_characters(chat)
    await chat.press("ctrl+s")
    await chat.until(lambda: chat.screen.chat.tree.system == text.replace("\r", "\n"))
    await chat.pilot.pause()


PLACES: list[Callable[[Chat, str], Awaitable[None]]] = [
    question_and_reply, thinking, notice_and_error, toast, hint, system_prompt,
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_foreign_text_is_inert(open_chat: OpenChat, place: Callable[[Chat, str], Awaitable[None]]) -> None:
    """Would catch: markup parsed, actions run, brackets eaten, escape sequences passed on, in this place."""
    async with open_chat(info={"thinking": True}) as chat:
        for text in NASTY:
            if place is question_and_reply and "\r" in text:
                continue  # becomes a newline in the prompt: its own test
            await place(chat, text)
            no_control_characters(chat)
            assert chat.app.is_running


async def test_pieces_of_anything_are_inert(open_chat: OpenChat) -> None:
    """Would catch: a chip or a piece at the cursor that is parsed, decoded strictly, or drawn raw."""
    async with open_chat() as chat:
        chat.engine.tokenizes = False
        for text in NASTY:
            if "\r" not in text:
                await chips(chat, text)


@pytest.mark.parametrize("text", ["[/INST]", "[@click=app.quit]x[/]", CONTROL[0]])
async def test_what_a_model_is_called_is_inert_while_it_loads(open_chat: OpenChat, text: str) -> None:
    """Would catch: an alias or a file name that reaches title or status as markup or raw."""
    async with open_chat(loaded=False, card=ModelCard(text, HubSource("a/b"), summary=f"Summary {text}.")) as chat:
        await chat.sent(LoadModel)
        no_control_characters(chat)
        chat.engine.emit(DownloadProgress(1, text, 1, 2))
        await chat.shows("downloading")
        no_control_characters(chat)
        chat.engine.emit(ModelLoading(1, f"stage {text}", 0.5))
        await chat.shows("stage")
        no_control_characters(chat)
        await chat.load()
        await chat.shows(f"Summary {one_line(text)}.")


async def test_what_a_file_says_of_itself_is_inert(open_chat: OpenChat) -> None:
    """Would catch: metadata that reaches title, model card, sources or help as markup or raw."""
    async with open_chat(size=(160, 60), loaded=False) as chat:
        await chat.sent(LoadModel)
        for text in NASTY:
            told = {"dtype_reason": f"dtype {text}", "copy_bytes": 1, "copy_reason": text}
            chat.engine.ready(name=text, architecture=text, notices=(f"Told {text}.",), **told)
            await chat.shows(f"Told {one_line(text)}.")
            chat.screen.sampler_panel.start(chat.screen.chat.sampler, {"top_p": text})
            await chat.pilot.pause()
            no_control_characters(chat)
            await chat.press("f1")
            await chat.shows(f"dtype {one_line(text)}; ")
            no_control_characters(chat)
            await chat.press("escape", "ctrl+n")
            await chat.hides("Told")


async def test_nothing_on_the_screen_can_be_clicked_into_an_action(open_chat: OpenChat) -> None:
    """Would catch: the model's text running an action of the app when clicked."""
    async with open_chat() as chat:
        await chat.ask("a")
        await chat.answer("[@click=app.quit]x[/] [x](javascript:1)")
        await chat.shows("[@click=app.quit]x[/]")
        line = next(y for y, text in enumerate(chat.text.splitlines()) if "@click" in text)
        for x in range(12, 50):
            await chat.pilot.click(offset=(x, line))
        assert chat.app.is_running


async def test_carriage_returns_become_newlines(open_chat: OpenChat) -> None:
    """Would catch: Windows line endings, or those terminals paste, reaching the tokenizer."""
    async with open_chat() as chat:
        chat.screen.editor.put("a\r\nb\rc\nd")
        assert chat.screen.editor.draft == "a\nb\nc\nd"
