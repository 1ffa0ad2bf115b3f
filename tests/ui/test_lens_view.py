"""The logit lens on the screen, key by key, large and small."""

from __future__ import annotations

import re

import pytest
from nasty import NASTY
from screen_driver import Chat, OpenChat, no_control_characters
from scripted_glass import CHANCES

from tinychat.protocol import Alternative, Lens, Lensed, LensLayer

SIZES = [(160, 48), (80, 24)]
WORDS = ["The", " capital", " is", " Paris"]


async def replied(chat: Chat) -> None:
    """Have a reply of one token a word."""
    await chat.ask("What?")
    chat.engine.say(*WORDS)
    chat.engine.finish("".join(WORDS), new_tokens=len(WORDS))
    await chat.until(lambda: not chat.screen.chat.busy)


@pytest.mark.parametrize("size", SIZES)
async def test_the_lens(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: layers of another token, ranks and tokens of another layer, a mark where a token leads but loses the
    lead again."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        await chat.press("f6", "g", "left")
        await chat.shows("token 3 of 4: ␣is")
        assert chat.engine.sent(Lens)[-1].index == 2
        await chat.shows("recomputed")
        await chat.shows("◆ settles at layer 4 of 5: from there on it ranks first.")
        rows = layer_rows(chat)
        assert sorted(rows) == [0, 1, 2, 3, 4, 5]
        assert [n for n, row in rows.items() if "◆" in row] == [4]
        assert "900" in rows[0]
        assert "0.001 %" in rows[0]
        assert "●" not in rows[0]
        assert "12.5 %" in rows[1], "a third place"
        for number in (2, 4, 5):
            assert "50 %" in rows[number]
            assert rows[number].index("●␣Pa") < rows[number].index("␣Lyon")
            assert "50 " in rows[number]
        assert rows[3].index("␣Lyon") < rows[3].index("●␣Pa")
        await chat.press("down", "down")
        await chat.shows("›   2")
        if size[1] > 40:
            await chat.shows("after layer 2")
            await chat.shows("id 5432")
        no_control_characters(chat)


def layer_rows(chat: Chat) -> dict[int, str]:
    """Return the rows of layers by their number."""
    found = (re.search(r"(?<!\d)(\d)(?:◆| ) +[\d,]+ +[\d.]+ %  .*", row) for row in chat.text.splitlines())
    return {int(row[1]): row[0] for row in found if row}


async def test_a_token_that_never_leads(open_chat: OpenChat) -> None:
    """Would catch: a mark at a layer where another token leads in the end; silence about why the token was said."""
    async with open_chat() as chat:
        chat.engine.answers = False
        await replied(chat)
        await chat.press("f6", "g")
        asked = await chat.sent(Lens)
        best = (Alternative(17, b" Lyon", CHANCES[0]),)
        layers = (LensLayer(best, 262_144, 1.25e-12), LensLayer(best, 1200, 0.0000001))
        chat.engine.emit(Lensed(asked.request_id, asked.turn_id, asked.index, 5432, layers))
        await chat.shows("Never settles: after the last layer it ranks 1,200.")
        assert "◆" not in chat.text
        await chat.shows(" 262144 1.2e-10 %  ")


async def test_the_lens_of_a_running_reply(open_chat: OpenChat) -> None:
    """Would catch: a pass of the model for every token that comes by, and a lens that stays away from a paused one."""
    async with open_chat(size=(80, 24)) as chat:
        await chat.ask("What?")
        chat.engine.say(*WORDS)
        await chat.press("f6", "g")
        await chat.shows("Tokens are coming: choose one (←)")
        chat.engine.say(" and")
        await chat.pilot.pause(0.2)
        assert not chat.engine.sent(Lens)
        chat.engine.pause()
        assert (await chat.sent(Lens)).index == 4
        await chat.shows("token 5 of 5: ␣and")
        await chat.press("left")
        await chat.shows("token 4 of 5: ␣Paris")


@pytest.mark.parametrize("size", SIZES)
async def test_foreign_tokens_in_the_lens(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a token that is parsed as markup, reaches the terminal raw, or shifts the columns behind it."""
    pieces = [text.encode("utf-8", "surrogatepass") for text in NASTY] + [b"\xf0\x9f", "日本語".encode(), b""]
    async with open_chat(size=size) as chat:
        chat.engine.answers = False
        await replied(chat)
        await chat.press("f6", "g")
        asked = await chat.sent(Lens)
        layers = tuple(
            LensLayer(tuple(Alternative(n + m, pieces[(n + m) % len(pieces)], 0.2) for m in range(5)), n + 1, 0.2)
            for n in range(len(pieces))
        )
        chat.engine.emit(Lensed(asked.request_id, asked.turn_id, asked.index, 0, layers))
        await chat.shows("[/]")
        for _ in pieces:
            await chat.press("down")
            no_control_characters(chat)
        assert all(len(row) <= size[0] for row in chat.text.splitlines())
        chat.engine.emit(Lensed(asked.request_id + 1, asked.turn_id, asked.index, problem="[/] \x1b[2J"))
        await chat.pilot.pause()
        no_control_characters(chat)


async def test_a_lens_without_an_answer_is_a_sentence(open_chat: OpenChat) -> None:
    """Would catch: a view that waits for ever."""
    async with open_chat(size=(80, 24)) as chat:
        chat.engine.answers = False
        await replied(chat)
        await chat.press("f6", "g")
        asked = await chat.sent(Lens)
        chat.engine.emit(Lensed(asked.request_id, asked.turn_id, asked.index, problem="[/INST] is gone \x1b[2J."))
        await chat.shows("[/INST] is gone ␛[2J.")
        no_control_characters(chat)
