"""The view of the cache, key by key, on a large and a small screen, and how its map is laid out."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nasty import NASTY
from screen_driver import Chat, OpenChat, no_control_characters
from scripted_glass import mapped

from tinychat.protocol import CachedBlock, CachedRun, CachedTable, CacheMapped, MapCache, Piece
from tinychat.ui import glass
from tinychat.ui.cache_layout import LET_GO, CacheLayout, glyph_of
from tinychat.ui.widgets.line_widget import Line, cells

SIZES = [(160, 48), (80, 24)]


def drawn(line: Line) -> str:
    return "".join(text for text, _ in line)


async def replied(chat: Chat, count: int = 20) -> None:
    """Have a reply of so many tokens."""
    await chat.ask("What?")
    chat.engine.prefill(70, 70, 40)
    chat.engine.say(*[f"w{n} " for n in range(count)])
    chat.engine.finish("said", new_tokens=count)
    await chat.until(lambda: not chat.screen.chat.busy)


@pytest.mark.parametrize("size", SIZES)
async def test_the_map_tells_of_each_position(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: the name, the block or the arrival of a neighbour, a cursor that keys don't move, sums left out."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        await chat.press("f6", "k")
        await chat.shows("90 of 8,192 tokens · 3 blocks, 2 shared, 300 free")
        await chat.shows("89 ◆ ␣tok89 · id 89 · reply, message 3 · guessed, and then drawn")
        await chat.shows("block #102, positions 64 to 95, not shared")
        await chat.shows("║#100 =A")
        await chat.shows("500 prompt tokens, 400 reused (80 %), 100 computed")
        await chat.press("home")
        await chat.shows("0 t ␣tok0 · id 0 · template · reused")
        await chat.shows("block #100, positions 0 to 31, shared with A")
        await chat.press(*["right"] * 4)
        await chat.shows("4 s ␣tok4 · id 4 · system, message 1 · reused")
        await chat.press("ctrl+right", "ctrl+right", "left")
        await chat.shows("67 T ␣tok67 · id 67 · template · computed with the prompt")
        await chat.press("left", "left", "left")
        await chat.shows("64 Y ␣tok64 · id 64 · you, message 2 · computed with the prompt")
        await chat.press("up")
        await chat.shows("block #100" if size[0] == 80 else "block #10")
        await chat.press("end")
        await chat.shows("89 ◆")
        await chat.shows("A 90 tokens, first 64 as here")
        if size[1] > 40:
            await chat.shows("768 bytes a layer, 23 KB in 30 layers, bfloat16")
            await chat.shows("Trims 3 (41 tokens), put aside 2, taken up again 1, blocks copied 2")
            await chat.shows("CAPITAL computed")
        else:
            await chat.shows("t template s system y you r reply  small reused ● drawn ◆ guessed ║ shared")
        no_control_characters(chat)


@pytest.mark.parametrize("size", SIZES)
async def test_a_long_map_is_drawn_whole_or_cell_by_cell(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a scale that nobody is told of, a map that leaves the position in focus out of view."""
    async with open_chat(size=size) as chat:
        await replied(chat, 2000)
        await chat.press("f6", "k")
        await chat.shows("1:8")
        await chat.shows("2,069 ◆")
        await chat.press("z")
        await chat.hides("1:8")
        await chat.shows("#164")
        await chat.press("home")
        await chat.shows("#100 =A")
        await chat.shows("   0 ║ttttssss")
        await chat.hides("#164")
        for pages in range(1, 8):
            before = chat.screen.glass.map_at
            await chat.press("pagedown")
            assert chat.screen.glass.map_at > before, pages
        await chat.hides("#100 =A")
        await chat.press(*["pageup"] * 13)
        await chat.shows("#100 =A")
        assert chat.screen.glass.map_at < 32


async def test_a_click_finds_its_position(open_chat: OpenChat) -> None:
    """Would catch: a click that finds the neighbour, and one on a border or below the map that finds anything."""
    async with open_chat(size=(80, 24)) as chat:
        await replied(chat)
        await chat.press("f6", "k")
        await chat.shows("0 ║tttt")
        rows = chat.text.splitlines()
        y = next(y for y, row in enumerate(rows) if "0 ║tttt" in row)
        x = rows[y].index("║tttt")
        await chat.pilot.click(offset=(x + 6, y))
        await chat.shows("5 s ␣tok5")
        await chat.pilot.click(offset=(x, y))
        await chat.pilot.click(offset=(2, y))
        await chat.pilot.click(offset=(x + 6, next(y for y, row in enumerate(rows) if "Since loading" in row)))
        await chat.pilot.pause()
        assert chat.screen.glass.map_at == 5


async def test_a_running_reply_is_followed_twice_a_second_at_most(open_chat: OpenChat) -> None:
    """Would catch: a question for every token, one asked while the view is closed, a last state never shown."""
    async with open_chat() as chat:
        await chat.ask("What?")
        chat.engine.prefill(70, 70, 40)
        chat.engine.say("a")
        await chat.pilot.pause(0.1)
        assert not chat.engine.sent(MapCache)
        await chat.press("f6", "k")
        await chat.sent(MapCache)
        start, before = time.monotonic(), len(chat.engine.sent(MapCache))
        for _ in range(60):
            chat.engine.say("a")
            await chat.pilot.pause(0.01)
        elapsed = time.monotonic() - start
        assert len(chat.engine.sent(MapCache)) - before <= elapsed / glass._MAP_EVERY + 1
        chat.engine.finish("a", new_tokens=61)
        await chat.shows("131 of 8,192 tokens")
        await chat.pilot.pause(0.1)
        asked = len(chat.engine.sent(MapCache))
        await chat.pilot.pause(0.3)
        assert len(chat.engine.sent(MapCache)) == asked, "nothing changes between turns"


async def test_names_far_away_are_asked_for(open_chat: OpenChat) -> None:
    """Would catch: a position without its token because only those around another were told."""
    async with open_chat() as chat:
        await replied(chat, 2000)
        await chat.press("f6", "k")
        await chat.shows("␣tok2069")
        await chat.press("home")
        await chat.shows("0 t ␣tok0")
        assert [command.position for command in chat.engine.sent(MapCache)][-1] == 0


@pytest.mark.parametrize("size", SIZES)
async def test_foreign_tokens_are_inert(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a token that is parsed as markup, runs an action, or reaches the terminal raw; half a character."""
    names = [text.encode("utf-8", "surrogatepass") for text in NASTY] + [b"\xf0\x9f", b"\xff", "שלום".encode(), b""]
    async with open_chat(size=size) as chat:
        chat.engine.answers = False
        await replied(chat)
        await chat.press("f6", "k")
        asked = await chat.sent(MapCache)
        answer = mapped(asked, 20, names)
        runs = tuple(replace(run, role="[/]\x1b[2J") for run in answer.runs)
        chat.engine.emit(replace(answer, runs=runs, dtype="[bold]\x1b[2J"))
        await chat.shows("90 of 8,192")
        await chat.press("home")
        await chat.shows("0 t [/INST]")
        for _ in names:
            await chat.press("right")
            no_control_characters(chat)
        assert chat.app.is_running


async def test_a_window_shows_what_it_let_go_of(open_chat: OpenChat) -> None:
    """Would catch: blocks of one window drawn for the layers of another, and positions that are gone told as there."""
    async with open_chat(size=(80, 24)) as chat:
        chat.engine.answers = False
        await replied(chat)
        await chat.press("f6", "k")
        answer = mapped(await chat.sent(MapCache), 20)
        sliding = CachedTable(24, 16, 1, (CachedBlock(7, 1), CachedBlock(9, 1)), 5)
        chat.engine.emit(replace(answer, tables=(replace(answer.tables[0], layers=6), sliding)))
        await chat.shows("6 layers, no window: 3 blocks")
        await chat.press("home", "n")
        await chat.shows("24 layers, window 16: 2 blocks, 0 shared, 5 free, 32 let go")
        await chat.shows("let go here: it lies behind the window of 16 tokens")
        await chat.shows(LET_GO * 16)
        await chat.press("n")
        await chat.shows("shared with A")


@pytest.mark.parametrize("answer", [CacheMapped(1, problem="[/INST] is gone \x1b[2J."), CacheMapped(1, capacity=64)])
async def test_no_map_is_a_sentence(open_chat: OpenChat, answer: CacheMapped) -> None:
    """Would catch: silence about why there is nothing, and a crash over caches that hold nothing."""
    async with open_chat(size=(80, 24)) as chat:
        chat.engine.answers = False
        await replied(chat)
        await chat.press("f6", "k")
        asked = await chat.sent(MapCache)
        chat.engine.emit(replace(answer, request_id=asked.request_id))
        await chat.shows("[/INST] is gone ␛[2J." if answer.problem else "The caches are empty.")
        await chat.press("left", "up", "end", "z", "n")
        no_control_characters(chat)


async def test_a_new_chat_says_that_the_caches_still_hold_the_old_one(open_chat: OpenChat) -> None:
    """Would catch: caches told as empty that aren't, and the map of a chat that is gone."""
    async with open_chat(size=(80, 24)) as chat:
        await replied(chat)
        await chat.press("f6", "k")
        await chat.shows("90 of 8,192")
        await chat.press("ctrl+n")
        await chat.shows("The caches still hold 90 tokens of the chat before.")


@given(
    length=st.integers(1, 900),
    width=st.integers(10, 200),
    lines=st.integers(1, 40),
    whole=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_position_has_its_cell(length: int, width: int, lines: int, whole: bool, seed: int) -> None:
    """Whatever the size: each cell is that of its position, rows follow each other, and where a block fits nothing is
    wider than the screen. Would catch: an off-by-one between the map and the click, or a row cut at the edge."""
    cuts = sorted({0, length, *((seed * 37 + n * 61) % length for n in range(5))})
    arrivals = ("reused", "computed", "drawn", "accepted")
    runs = tuple(
        CachedRun(low, high, arrivals[n % 4], "model", "assistant", 1) for n, (low, high) in enumerate(pairwise(cuts))
    )
    first = seed % (length // 32 + 1)
    blocks = tuple(CachedBlock(n, 1 + n % 2, (0,) * (n % 2)) for n in range(first, -(-length // 32)))
    answer = CacheMapped(1, length, 1024, runs, tables=(CachedTable(1, None, first, blocks, 0),))
    layout = CacheLayout(answer, 0, width, lines, whole=whole)
    found = []
    for row in range(layout.rows):
        numbers, glyphs = layout.lines(row, focus=-1)
        assert width < 14 or cells(glyphs) <= width
        assert width < 14 or cells(numbers) <= width
        for x, glyph in enumerate(drawn(glyphs)):
            position = layout.position_at(row, x)
            if position is not None and glyph not in "│║ ":
                assert layout.row_of(position) == row
                gone = position // 32 < first
                assert glyph == (LET_GO if gone else glyph_of(layout.run_of(position)))
                found.append(position)
    assert found == list(range(0, length, layout.scale))


def test_a_name_is_that_of_its_own_position() -> None:
    """Would catch: the scripted answer, which other tests are held to, telling names from another place on."""
    answer = mapped(MapCache(1, 600), 1000)
    assert answer.first_piece == 344
    assert answer.pieces[0] == Piece(344, b" tok344", 0)
