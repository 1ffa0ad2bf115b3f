"""A reply that waits, goes on by a token or a sentence, or plays at so many tokens a second."""

from __future__ import annotations

import pytest
from screen_driver import Chat, OpenChat

from tinychat.protocol import Cancel, Explain, Generate, Pace
from tinychat.ui.glass import VIEWS
from tinychat.ui.pacing import Pacing

SIZES = [(160, 48), (80, 24)]


async def asked(chat: Chat, *words: str) -> None:
    await chat.ask("What?")
    chat.engine.say(*words)
    await chat.shows("answering")


@pytest.mark.parametrize("size", SIZES)
async def test_pause_step_and_go_on(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a pause that nobody is told how to leave, and one that is said before the engine has stopped."""
    async with open_chat(size=size) as chat:
        await asked(chat, "The", " capital")
        await chat.press("f7")
        assert (await chat.sent(Pace)) == Pace("pause")
        assert "PAUSED" not in chat.text
        chat.engine.pause()
        await chat.shows("PAUSED before token 3")
        await chat.shows("F7 goes on · F8 makes one token")
        await chat.press("f8")
        assert (await chat.sent(Pace, 2)) == Pace("step")
        chat.engine.say(" of")
        chat.engine.pause()
        await chat.shows("PAUSED before token 4")
        await chat.shows("The capital of▌")
        await chat.press("f7")
        assert (await chat.sent(Pace, 3)) == Pace("play")
        chat.engine.say(" France")
        await chat.hides("PAUSED")
        await chat.answer(".")
        await chat.press("f8")
        await chat.pilot.pause()
        assert len(chat.engine.sent(Pace)) == 3, "there is nothing to step"


async def test_letters_and_signs_where_nobody_types(open_chat: OpenChat) -> None:
    """Would catch: a full stop typed into a message that makes a token, and keys of the views that don't step."""
    async with open_chat() as chat:
        await asked(chat, "One")
        await chat.type("a. s+")
        assert chat.screen.editor.draft == "a. s+"
        assert not chat.engine.sent(Pace)
        await chat.press("f6", "t", "space")
        assert (await chat.sent(Pace)) == Pace("pause")
        await chat.press("full_stop")
        assert (await chat.sent(Pace, 2)) == Pace("step")
        await chat.press("s")
        assert (await chat.sent(Pace, 3)) == Pace("sentence")
        await chat.press("space")
        assert (await chat.sent(Pace, 4)) == Pace("play")
        await chat.press("minus")
        assert (await chat.sent(Pace, 5)) == Pace("play", 32)
        await chat.shows("32 tok/s")
        await chat.shows("at most 32 a second")
        await chat.press("minus", "plus", "plus")
        assert (await chat.sent(Pace, 8)) == Pace("play")
        await chat.answer("One")
        chat.screen.transcript.focus()
        await chat.press("space", "full_stop")
        await chat.until(lambda: chat.screen.editor.draft == "a. s+ .")


async def test_the_pace_slider(open_chat: OpenChat) -> None:
    """Would catch: a rate that the next reply forgets, or that ends a pause."""
    async with open_chat(size=(160, 48)) as chat:
        chat.screen.pace_slider.focus()
        await chat.press("8", "enter")
        await chat.shows("8 tok/s")
        await chat.press("f6", "f6")
        await chat.ask("What?")
        assert (await chat.sent(Generate)).pace == Pace("play", 8)
        await chat.press("f7")
        assert (await chat.sent(Pace)) == Pace("pause", 8)
        chat.screen.pace_slider.focus()
        await chat.press("home")
        await chat.shows("full")
        await chat.pilot.pause()
        assert len(chat.engine.sent(Pace)) == 1
        await chat.press("f7")
        assert (await chat.sent(Pace, 2)) == Pace("play")


async def test_a_reply_can_begin_with_a_pause(open_chat: OpenChat) -> None:
    """Would catch: a first token that is always gone by before anybody can step to it, and a pause for ever after."""
    async with open_chat() as chat:
        await chat.press("f7")
        await chat.shows("The next reply waits before its first token.")
        await chat.ask("What?")
        assert (await chat.sent(Generate)).pace == Pace("pause")
        chat.engine.prefill(350, 350, 312)
        chat.engine.pause()
        await chat.shows("PAUSED before token 1")
        await chat.press("escape")
        await chat.sent(Cancel)
        chat.engine.finish("", "cancelled", new_tokens=0)
        await chat.until(lambda: not chat.screen.chat.busy)
        await chat.ask("Again?")
        assert (await chat.sent(Generate, 2)).pace == Pace()


@pytest.mark.parametrize("size", SIZES)
async def test_while_paused_the_next_token_is_explained_and_can_be_chosen(
    open_chat: OpenChat, size: tuple[int, int]
) -> None:
    """Would catch: a table of the token before, a slider that doesn't act on it, a branch that runs away."""
    async with open_chat(size=size) as chat:
        await asked(chat, "The", " capital")
        first = chat.engine.turn_id
        await chat.press("f6", "w", "space")
        await chat.sent(Pace)
        chat.engine.pause()
        await chat.shows("token 3, the next: not drawn yet")
        asked_for = chat.engine.sent(Explain)[-1]
        assert (asked_for.turn_id, asked_for.index) == (first, 2)
        await chat.press("f3")
        await chat.until(lambda: chat.app.focused is not None and chat.app.focused.id == "temperature")
        await chat.press("right")
        await chat.shows("by the sliders now")
        await chat.until(lambda: chat.engine.sent(Explain)[-1].sampler == chat.screen.chat.sampler)
        await chat.press("f6", "left")
        await chat.shows("token 2 of 2")
        await chat.press("right")
        await chat.shows("token 3, the next")
        await chat.press("down", "enter")
        assert (await chat.sent(Cancel)).turn_id == first
        chat.engine.finish("The capital", "cancelled")
        command = await chat.sent(Generate, 2)
        assert command.branch_of == first
        assert command.forced_ids[-1] == 17
        assert len(command.forced_ids) == 3
        assert command.pace == Pace("pause")
        chat.engine.say("The", " capital", " Lyon")
        chat.engine.pause()
        await chat.shows("PAUSED before token 4")


async def test_while_paused_the_first_arrow_leaves_the_token_in_view(open_chat: OpenChat) -> None:
    """Would catch: a first ← that does nothing, because it starts from a token that only the view "why" shows."""
    async with open_chat() as chat:
        await asked(chat, "The", " capital", " is")
        await chat.press("f7")
        chat.engine.pause()
        await chat.shows("PAUSED before token 4")
        reply = chat.screen.glass.reply
        assert reply is not None
        walked = []
        for view in VIEWS:
            chat.screen.open_view(view)
            if not chat.screen.active_bindings["left"].binding.action.startswith("screen.focus_token"):
                continue  # its arrows go over something else
            walked.append(view)
            await chat.press("left")
            assert reply.at == (2 if view == "why" else 1)
            await chat.press("right")
            assert reply.focus is None, "the end is followed again"
        assert {"tokens", "why", "layers", "lens", "time"} <= set(walked)


async def test_a_branch_from_a_reply_that_runs_runs_on(open_chat: OpenChat) -> None:
    """Would catch: a new version that waits though nobody paused the old one."""
    async with open_chat() as chat:
        await asked(chat, "The", " capital")
        await chat.press("f6", "w")
        await chat.shows("●␣Paris")
        await chat.press("down", "enter")
        await chat.sent(Cancel)
        chat.engine.finish("The capital", "cancelled")
        assert (await chat.sent(Generate, 2)).pace == Pace()


def test_a_rate_alone_does_not_end_a_pause() -> None:
    """Would catch: a slider that has a waiting reply go on."""
    sent: list[object] = []
    pacing = Pacing(sent.append)
    pacing.hold(True, busy=True)
    pacing.set_rate(4.0, busy=True)
    assert sent == [Pace("pause")]
    pacing.step("sentence")
    assert sent[-1] == Pace("sentence", 4.0)
    pacing.end()
    assert pacing.begin() == Pace("play", 4.0)
