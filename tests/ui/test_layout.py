"""Whole screens, as text, at every size the screen has to be good at."""

from __future__ import annotations

import pytest
from screen_driver import Chat, OpenChat
from scripted_engine import stats

from tinychat.ui.screens.help import _prose

SIZES = [(160, 48), (80, 24), (120, 16), (40, 20), (20, 5), (12, 3)]


async def conversation(chat: Chat) -> None:
    await chat.ask("What is the capital of France?")
    await chat.answer("The capital of France is **Paris**.")
    chat.engine.emit(*stats(used=312, reused=280))
    await chat.type("What about it?")


async def test_the_large_screen(open_chat: OpenChat) -> None:
    """Would catch: a part of the sketch that is missing or out of its place."""
    async with open_chat(size=(160, 48)) as chat:
        await conversation(chat)
        await chat.shows("312 of 8,192 tokens")
        await chat.shows("▐What▌▐␣about▌▐␣it▌▐?▌")
        rows = chat.text.splitlines()
        assert len(rows) == 48
        assert rows[0].startswith("─ smollm2 · Llama · 135 M · int4 ───")
        assert rows[0].endswith("─── 212 tok/s · first token 41 ms ─")
        left = [row[:114].rstrip() for row in rows]
        assert " you        What is the capital of France?" in left
        assert " smollm2    The capital of France is Paris." in left
        right = [row[114:].rstrip() for row in rows]
        assert right[1] == "│ Sampler"
        assert right[2] == "│   temperature ━━●──────────────────    0.20"
        assert right[3] == "│   top-k       ━━━━●────────────────      40"
        assert right[5] == "│   min-p       ●────────────────────     off"
        assert "│ █ 280 reused  ▓ 32 new               · free" in right
        assert right[20] == "│ blocks: 10 used, 2 shared, 311 free"
        assert right[21] == "│  0 ▎·····   8 ▎·····  16 ▎·····  24 ▎·····"
        assert "│ Memory                       process 480 MB" in right
        assert rows[41].startswith("─ tokens 4 · 0.1 % of 8,192 ───")
        assert rows[42].startswith("▐What▌▐␣about▌▐␣it▌▐?▌")
        assert rows[44].startswith(" id 63 · 3F · ?")
        assert rows[46].startswith(" > What about it?")
        keys = " Enter send · Ctrl+J newline · Esc stop · F1 help · F6 views · Ctrl+Q quit · F7 pause · F2 panel"
        assert rows[47].startswith(keys)


async def test_the_small_screen(open_chat: OpenChat) -> None:
    """Would catch: a panel that takes the room of the conversation, and no way to see it."""
    async with open_chat(size=(80, 24)) as chat:
        await conversation(chat)
        await chat.shows("▐What▌")
        assert "Sampler" not in chat.text
        assert "smollm2    The capital of France is Paris." in chat.text
        assert len(chat.text.splitlines()) == 24
        await chat.press("f2")
        await chat.shows("Sampler")
        await chat.shows("temperature")
        await chat.press("escape")
        await chat.hides("Sampler")
        assert chat.screen.editor.has_focus
        await chat.press("f3")
        await chat.shows("› temperature")
        assert "Sampler" in chat.text, "the heading is in view too"


async def test_a_long_name_leaves_room_for_the_figures(open_chat: OpenChat) -> None:
    """Would catch: speed and time to the first token pushed out by the name of a file."""
    async with open_chat(size=(80, 24), info={"name": "a-model-that-is-called-" + "very-" * 20 + "long"}) as chat:
        await chat.ask("Hello")
        await chat.answer("Hi you")
        await chat.shows("… ─ 212 tok/s · first token 41 ms ─")
        assert chat.text.startswith("─ a-model-that-is-called-very-")


@pytest.mark.parametrize("width", [8, 20, 79, 80])
async def test_a_hint_longer_than_the_line_is_cut(open_chat: OpenChat, width: int) -> None:
    """Would catch: a sentence that is left out altogether on the screens where it doesn't fit."""
    async with open_chat(size=(width, 24)) as chat:
        chat.screen.hint("x" * 200)
        await chat.shows("xx…" if width > 8 else "x…")


async def test_the_panel_can_be_put_away_on_a_large_screen(open_chat: OpenChat) -> None:
    """Would catch: a key that only works at one size."""
    async with open_chat(size=(160, 48)) as chat:
        await chat.shows("Sampler")
        await chat.press("f2")
        await chat.hides("Sampler")
        await chat.press("f2")
        await chat.shows("Sampler")


@pytest.mark.parametrize("busy", [False, True])
async def test_any_size_and_back(open_chat: OpenChat, busy: bool) -> None:
    """Would catch: a crash on a tiny terminal, and a screen that doesn't recover from one."""
    async with open_chat(size=(160, 48)) as chat:
        await conversation(chat)
        if busy:
            await chat.press("enter")
            chat.engine.say(*["word "] * 200)
            await chat.shows("word word")
        for size in [*SIZES, *reversed(SIZES)]:
            await chat.pilot.resize_terminal(*size)
            await chat.pilot.pause()
            if busy:
                chat.engine.say("more ")
                await chat.shows("more")
            rows = chat.text.splitlines()
            assert len(rows) == size[1]
            assert all(len(row) <= size[0] for row in rows)
            await chat.shows(">")
        await chat.pilot.resize_terminal(160, 48)
        await chat.shows("Sampler")
        await chat.shows("Enter send")


async def test_a_tiny_terminal_still_shows_and_takes_text(open_chat: OpenChat) -> None:
    """Would catch: nothing but chrome at 20x5."""
    async with open_chat(size=(20, 5)) as chat:
        await chat.type("Hi")
        await chat.shows("> Hi")
        await chat.press("enter")
        chat.engine.say("Hello you")
        await chat.shows("Hello you▌")


@pytest.mark.parametrize("size", [(160, 48), (80, 24)])
async def test_help_explains_keys_focus_and_model(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: help that forgot a key, or what became of the weights."""
    async with open_chat(size=size, info={"notices": ("This CPU has no bf16.",)}) as chat:
        await chat.press("f1")
        await chat.shows("Help")
        await chat.shows("The prompt.")
        await chat.shows("Ctrl+J, Shift+Enter  New line")
        seen = chat.text
        for _ in range(12):
            await chat.press("pagedown")
            seen += chat.text
        for fact in ("Ctrl+N", "F4", "int4 (file Q4_1), head bf16 (file Q8_0); 127 MB", "numba, 2 threads",
                     "8,192 tokens of the model's 8,192", "This CPU has no bf16.", "Leave tinychat"):  # fmt: skip
            assert fact in seen, fact
        await chat.press("f1")
        await chat.hides("Esc closes")
        await chat.press("f3")
        await chat.shows("› temperature")
        await chat.press("f1")
        await chat.shows("A sampler setting.")


def test_a_help_text_runs_on() -> None:
    """Would catch: lines that end where they do in the code, and a list whose points run on."""
    text = "\n**One.** A line\nand the next.\n\nAnother:\n* `a` point\n* and one\n"
    assert _prose(text).plain == "One. A line and the next.\n\nAnother:\n* a point\n* and one"


async def test_the_key_bar_can_be_clicked(open_chat: OpenChat) -> None:
    """Would catch: a bar that looks like buttons and isn't."""
    async with open_chat() as chat:
        row = len(chat.text.splitlines()) - 1
        await chat.pilot.click(offset=(chat.text.splitlines()[row].index("F1") + 1, row))
        await chat.shows("Esc closes")
