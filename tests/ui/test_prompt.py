"""Typing and pasting: nothing is lost, nothing is sent by accident, nothing gets slow."""

from __future__ import annotations

import time

import pytest
from screen_driver import Chat, OpenChat
from scripted_engine import pieces_of
from textual import events

from tinychat.protocol import Generate, Tokenize
from tinychat.ui.widgets.token_inspector import TokenInspector


async def paste(chat: Chat, text: str) -> None:
    chat.screen.editor.post_message(events.Paste(text))
    await chat.pilot.pause()


async def test_enter_sends_and_ctrl_j_breaks_the_line(open_chat: OpenChat) -> None:
    """Would catch: no way to write two lines on a terminal without Shift+Enter."""
    async with open_chat() as chat:
        await chat.press("a", "ctrl+j", "b", "shift+enter", "c", "enter")
        assert (await chat.sent(Generate)).messages[-1].text == "a\nb\nc"


async def test_what_is_typed_in_one_burst_is_sent_whole(open_chat: OpenChat) -> None:
    """Would catch: an Enter that overtakes the letters typed just before it."""
    async with open_chat() as chat:
        for key in ["H", "i", "ctrl+j", "y", "o", "u", "enter"]:
            chat.app.simulate_key(key)
        assert (await chat.sent(Generate)).messages[-1].text == "Hi\nyou"


async def test_a_paste_never_sends(open_chat: OpenChat) -> None:
    """Would catch: a pasted newline taken for Enter."""
    async with open_chat() as chat:
        await paste(chat, "one\rtwo\r\nthree\n")
        assert chat.screen.editor.draft == "one\ntwo\nthree\n"
        assert not chat.engine.sent(Generate)
        await chat.press("enter")
        assert (await chat.sent(Generate)).messages[-1].text == "one\ntwo\nthree\n"


CHARACTERS = ["日", "本", "❤\ufe0f", "👨\u200d👩\u200d👧", "🇨🇿", "🇫🇷", "e\u0301", "👍🏽", "x"]


async def test_keys_go_by_characters_as_people_count_them(open_chat: OpenChat) -> None:
    """Would catch: a backspace that leaves a third of a family, or an accent that outlives its letter."""
    async with open_chat() as chat:
        editor = chat.screen.editor
        editor.put("".join(CHARACTERS))
        for left in range(len(CHARACTERS) - 1, -1, -1):
            await chat.press("backspace")
            assert editor.draft == "".join(CHARACTERS[:left])
        editor.put("".join(CHARACTERS))
        await chat.press("home", "right", "right", "right", "right", "delete")
        assert editor.draft == "".join([*CHARACTERS[:4], *CHARACTERS[5:]])
        await chat.press("left", "left", "delete", "end", "left", "left", "backspace")
        assert editor.draft == "".join([*CHARACTERS[:2], *CHARACTERS[3:4], *CHARACTERS[5:6], *CHARACTERS[7:]])
        editor.clear_draft()
        editor.put("a\nb")
        await chat.press("home", "left", "delete", "right", "backspace")
        assert editor.draft == "a", "lines join as ever"


@pytest.mark.parametrize("text", ["word " * 40_000, "a" * 200_000, "日本語" * 66_000, "line\n" * 40_000])
async def test_a_long_paste_is_folded_sent_whole_and_costs_nothing(open_chat: OpenChat, text: str) -> None:
    """Would catch: a text area that takes most of a second a key once 200 kB are in it, and text cut off on the way."""
    async with open_chat() as chat:
        chat.engine.tokenizes = False
        await paste(chat, text)
        await chat.shows("▤")
        await chat.shows(f"▤ {len(text):,} characters pasted; sent whole")
        await chat.until(lambda: chat.engine.sent(Tokenize) and chat.engine.sent(Tokenize)[-1].text == text)
        began = time.thread_time()
        await chat.type("bcdefghijk")
        assert (time.thread_time() - began) / 10 < 0.1, "seconds a key"
        assert chat.screen.editor.draft == f"{text}bcdefghijk"
        await chat.press(*["backspace"] * 10, "backspace")
        await chat.until(lambda: chat.screen.editor.draft == "")
        await chat.hides("characters pasted")
        await chat.press("ctrl+z")
        await chat.until(lambda: text in chat.screen.editor.draft)
        await chat.press("enter")
        assert text in (await chat.sent(Generate)).messages[-1].text


async def test_pastes_that_add_up_are_folded_too(open_chat: OpenChat) -> None:
    """Would catch: ten pastes of 3 kB that make the prompt as slow as one of 30."""
    async with open_chat() as chat:
        chat.engine.tokenizes = False
        for _ in range(10):
            await paste(chat, "x" * 3000)
        assert len(chat.screen.editor.text) < 20_000
        assert chat.screen.editor.draft == "x" * 30_000


async def test_control_characters_in_a_paste_are_kept_and_not_drawn(open_chat: OpenChat) -> None:
    """Would catch: an escape sequence drawn in the prompt, or dropped from what is sent."""
    async with open_chat() as chat:
        await paste(chat, "a\x1b[31mb\x9bc\x00")
        await chat.shows("> a␛[31mb␦c␀")
        await chat.press("left", "x", "enter")
        assert (await chat.sent(Generate)).messages[-1].text == "a\x1b[31mb\x9bcx\x00"


async def test_copy_and_cut_give_the_exact_text(open_chat: OpenChat) -> None:
    """Would catch: a stand-in on the clipboard."""
    async with open_chat() as chat:
        await paste(chat, "a\x1bb")
        await chat.press("shift+home", "ctrl+c")
        assert chat.app.clipboard == "a\x1bb"
        assert chat.screen.editor.draft == "a\x1bb"
        await chat.press("ctrl+x")
        assert chat.screen.editor.draft == ""
        await chat.press("ctrl+v")
        assert chat.screen.editor.draft == "a\x1bb"


async def test_the_cursor_is_counted_in_bytes_of_the_draft(open_chat: OpenChat) -> None:
    """Would catch: the wrong piece shown as the one at the cursor, after wide characters or a folded paste."""
    async with open_chat() as chat:
        await paste(chat, "é🦙\nb" + "\x1b")
        assert chat.screen.editor.cursor_byte == len("é🦙\nb\x1b".encode())
        await chat.press("left", "left")
        assert chat.screen.editor.cursor_byte == len("é🦙\n".encode())


async def test_the_newest_draft_is_asked_for_not_every_key(open_chat: OpenChat) -> None:
    """Would catch: a request a key, each of which interrupts the engine between two tokens."""
    async with open_chat() as chat:
        chat.engine.tokenizes = False
        await chat.type("many keys in a row")
        await chat.until(lambda: chat.engine.sent(Tokenize))
        asked = len(chat.engine.sent(Tokenize))
        assert asked == 1, "one request until there is an answer"


async def test_the_prompt_grows_and_stops_growing(open_chat: OpenChat) -> None:
    """Would catch: a long draft that pushes the conversation off the screen."""
    async with open_chat(size=(80, 24)) as chat:
        heights = []
        for _ in range(12):
            await chat.press("a", "ctrl+j")
            heights.append(chat.screen.editor.size.height)
        assert heights[0] == 2
        assert heights[-1] == 8
        assert chat.screen.transcript.size.height >= 5


def inspector(text: str, offset: int, rows: int = 2) -> TokenInspector:
    widget = TokenInspector()
    widget.update_lines = lambda: None  # type: ignore[method-assign]
    widget.show(pieces_of(text))
    widget.move_cursor(offset)
    widget.set_context(1000)
    widget.set_rows(rows)
    return widget


def lines(widget: TokenInspector, width: int = 40) -> list[str]:
    return ["".join(text for text, _ in line) for line in widget.compose_lines(width)]


def test_the_cursors_chip_is_always_in_view() -> None:
    """Would catch: a long draft whose chips scroll away from the cursor, or are drawn over the edge."""
    text = "the quick brown fox jumps over the lazy dog " * 200
    pieces = pieces_of(text)
    for offset in (0, 10, 100, 1000, len(text) // 2, len(text)):
        for rows in (1, 2, 3):
            widget = inspector(text, offset, rows)
            drawn = widget.compose_lines(40)
            assert len(drawn) == rows + 2
            assert any(name == "chip--cursor" for line in drawn for _, name in line), (offset, rows)
            assert all(sum(len(text) for text, _ in line) <= 40 for line in drawn)
    assert len(pieces) > 1000


def test_a_book_costs_no_more_than_a_page() -> None:
    """Would catch: chips laid out for all of a 200 kB draft at each key."""
    widget = inspector("word " * 40_000, 100_000)
    began = time.thread_time()
    widget.compose_lines(160)
    assert time.thread_time() - began < 0.25


def test_a_short_draft_is_shown_from_its_beginning() -> None:
    """Would catch: a window that scrolls where there is no need to."""
    drawn = lines(inspector("What about it?", 14))
    assert drawn[0].startswith("─ tokens 4 · 0.4 % of 1,000 ")
    assert drawn[1] == "▐What▌▐␣about▌▐␣it▌▐?▌"
    assert drawn[3] == " id 63 · 3F · ?"


def test_too_long_a_draft_is_a_warning() -> None:
    """Would catch: a draft beyond the context that looks like any other."""
    drawn = inspector("a b " * 600, 0).compose_lines(60)
    assert ("inspector--warning") in [name for _, name in drawn[0]]


def test_an_empty_draft_has_no_chips_and_keeps_the_rows() -> None:
    """Would catch: an index error on an empty draft, and a panel that jumps when the first letter comes."""
    assert lines(inspector("", 0)) == [
        "─ tokens 0 · 0 % of 1,000 ──────────────", "", "", " id · bytes · piece at the cursor",
    ]  # fmt: skip
    assert len(lines(inspector("", 0, rows=0))) == 1
