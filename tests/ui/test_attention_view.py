"""The view of attention, key by key, large and small, and the numbers and the text it is drawn from."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nasty import NASTY
from screen_driver import Chat, OpenChat, no_control_characters
from scripted_glass import attended, described

from tinychat.protocol import Attend, Attended, DescribePrompt, Piece, PromptDescribed, SetViews, Span, TokenEmitted
from tinychat.ui.attention_focus import AttentionFocus
from tinychat.ui.attention_layout import AttentionLayout
from tinychat.ui.attention_row import AttentionRow
from tinychat.ui.views import attention

SIZES = [(160, 48), (80, 24)]
WORDS = ["The", " capital", " is", " Paris"]


async def replied(chat: Chat, *words: str) -> None:
    """Have a reply of one token a word."""
    words = words or tuple(WORDS)
    await chat.ask("What?")
    chat.engine.prefill(7, 7, 0)
    chat.engine.say(*words)
    chat.engine.finish("".join(words), new_tokens=len(words))
    await chat.until(lambda: not chat.screen.chat.busy)


@pytest.mark.parametrize("size", SIZES)
async def test_layers_heads_and_what_they_give(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: weights of another token or head, a maximum called a distribution, a rescaled row that isn't told,
    a head that keys don't reach."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        await chat.press("f6", "a", "left")
        await chat.shows("token 3 of 4: ␣is")
        asked = chat.engine.sent(Attend)[-1]
        assert (asked.index, asked.layer, asked.head) == (2, 15, None)
        await chat.shows("recomputed")
        await chat.shows("layer 15 of 29 · mean of 9 heads")
        await chat.shows("sum 1.000")
        await chat.shows("8 ␣capital · reply · 27.8 % · most by layer 15, head 8")
        await chat.shows("␣is◀")
        await chat.shows("␣capital▇")
        await chat.shows("What?▁")
        await chat.press("down", "h")
        await chat.shows("layer 16 of 29 · head 0 of 8 · kv head 0")
        await chat.shows("sum 1.000 · 0.81 bits")  # number 144 falls on the first of 9 positions, too
        await chat.shows("<s>▇")
        await chat.shows("␣capital▅")
        await chat.press("H")
        await chat.shows("head 8 of 8 · kv head 2")
        await chat.press("H", "H", "H", "H")
        await chat.shows("head 4 of 8 · kv head 1")
        await chat.shows("sum 1.000 · 1.50 bits")
        await chat.shows("What?▇")
        await chat.press("f")
        await chat.shows("without the first, 50 %")
        await chat.shows("sum 1.000 · 1.00 bits")
        await chat.shows("What?▇")
        await chat.shows("8 ␣capital · reply · 50 %")
        await chat.press("x")
        await chat.shows("layer 16 of 29 · mean of 9 heads")
        await chat.press("x")
        await chat.shows("maximum over 9 heads of 30 layers")
        await chat.shows("no distribution")
        await chat.press("f", "shift+left", "shift+left")
        await chat.shows("6 ↵ · template · 25 % · most by layer 0, head 6")
        await chat.press("enter")
        await chat.shows("layer 0 of 29 · head 6 of 8")
        await chat.press("up")
        assert chat.screen.glass.heads.layer == 0, "there is none before it"
        no_control_characters(chat)


@pytest.mark.parametrize("size", SIZES)
async def test_the_largest_are_listed_and_gone_to(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a list of another order, a number that goes to another one's token, weights left out."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        await chat.press("f6", "a", "left", "h", "h", "h", "h")
        await chat.shows("head 3 of 8")
        assert re.search(r"1 (0 )?<s> +50 %.*2 (3 )?↵ +25 %.*3 (8 )?␣capital +25 %", chat.text, re.DOTALL)
        await chat.press("1")
        await chat.shows("0 <s> · template · 50 %")
        await chat.press("3")
        await chat.shows("8 ␣capital · reply · 25 %")
        await chat.press("2", "left")
        await chat.shows("token 2 of 4")
        await chat.shows("3 ↵ · template")
        await chat.press("f6")
        await replied(chat, *WORDS, " so")
        await chat.shows("token 5 of 5: ␣so")
        await chat.shows("10 ␣Paris · reply · 25 %")  # in another reply one looks at its own end again


async def test_what_lies_behind_a_window(open_chat: OpenChat) -> None:
    """Would catch: positions out of sight drawn as if they were given little, and a first one left out that is none."""
    async with open_chat(size=(80, 24)) as chat:
        chat.engine.answers = False
        await replied(chat)
        await chat.press("f6", "a")
        chat.engine.emit(described(await chat.sent(DescribePrompt)))
        chat.engine.emit(attended(await chat.sent(Attend), window=5))
        await chat.shows("layer 15 of 29 · mean of 9 heads · window 5")
        await chat.shows("sum 1.000")
        for label in ("<s>×", "user×", "What?×", "<|im_end|>▇"):
            await chat.shows(label)
        await chat.press("shift+up", "shift+left", "shift+left", "f")
        await chat.shows("4 What? · you · behind the window of 5")
        assert "without the first" not in chat.text


async def test_a_click_looks_at_a_token(open_chat: OpenChat) -> None:
    """Would catch: a click that finds the neighbour, a second one that doesn't go to the head."""
    async with open_chat(size=(80, 24)) as chat:
        await replied(chat)
        await chat.press("f6", "a", "x")
        await chat.shows("maximum over")
        await chat.shows("␣capital▅")
        rows = chat.text.splitlines()
        y = max(y for y, row in enumerate(rows) if "␣capital" in row)
        x = rows[y].index("␣capital")
        await chat.pilot.click(offset=(x + 2, y))
        await chat.shows("8 ␣capital · reply · 25 % · most by layer 0, head 8")
        await chat.pilot.click(offset=(x + 2, y), times=2)
        await chat.shows("layer 0 of 29 · head 8 of 8")
        await chat.pilot.click(offset=(3, y))
        assert "8 ␣capital" in chat.text


async def test_the_attention_of_a_running_reply(open_chat: OpenChat) -> None:
    """Would catch: a pass of the model for every token that comes by, and a view that stays away from a paused one."""
    async with open_chat(size=(80, 24)) as chat:
        await chat.ask("What?")
        chat.engine.prefill(7, 7, 0)
        chat.engine.say(*WORDS)
        await chat.press("f6", "a")
        assert chat.engine.sent(SetViews)[-1].views == {"attention"}
        await chat.shows("Tokens are coming: choose one (←)")
        chat.engine.say(" and")
        await chat.pilot.pause(0.2)
        assert not chat.engine.sent(Attend)
        chat.engine.pause()
        assert (await chat.sent(Attend)).index == 4
        await chat.shows("token 5 of 5: ␣and")
        await chat.shows("layer 15 of 29")
        chat.engine.say(" so")
        chat.engine.pause()
        await chat.shows("token 6 of 6: ␣so")
        await chat.shows("␣and▇ ␣so◀")
        await chat.press("escape", "escape")
        await chat.until(lambda: chat.engine.sent(SetViews)[-1].views == frozenset())


@pytest.mark.parametrize("size", SIZES)
async def test_foreign_tokens_are_inert(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a token that is parsed as markup, reaches the terminal raw, or shifts what stands behind it; half a
    character."""
    pieces = [text.encode("utf-8", "surrogatepass") for text in NASTY] + [b"\xf0\x9f", "日本語".encode(), b""]
    async with open_chat(size=size) as chat:
        chat.engine.answers = False
        await replied(chat, *NASTY)
        await chat.press("f6", "a")
        asked = await chat.sent(DescribePrompt)
        parts = tuple(Piece(number, data, 0, number % 5 == 0) for number, data in enumerate(pieces))
        spans = (Span(0, 9, "template", "[/]"), Span(9, 20, "person", "[/]\x1b"), Span(20, len(parts), "template", ""))
        chat.engine.emit(PromptDescribed(asked.request_id, asked.turn_id, parts, spans))
        chat.engine.emit(attended(await chat.sent(Attend), prompt=len(parts)))
        for keys, asks in (("left", 2), ("x", 3), ("down", 4), ("h", 5), ("f", 5), ("end", 6), ("1", 6)):
            await chat.press(keys)
            chat.engine.emit(attended(await chat.sent(Attend, asks), prompt=len(parts)))
            await chat.shows("bits" if keys != "x" else "no distribution")
            for _ in range(4):
                await chat.press("shift+left", "shift+up")
                no_control_characters(chat)
        assert all(len(row) <= size[0] for row in chat.text.splitlines())
        await chat.shows("[/INST]")


@pytest.mark.parametrize("kind", ["attention", "prompt"])
async def test_no_answer_is_a_sentence(open_chat: OpenChat, kind: str) -> None:
    """Would catch: a view that waits for ever, and keys that fail where there is nothing."""
    async with open_chat(size=(80, 24)) as chat:
        chat.engine.answers = False
        await chat.press("f6", "a", "down", "h", "x", "f", "1", "enter", "shift+left", "shift+down", "pagedown")
        await chat.shows("Nothing to look at yet")
        await chat.press("f6")
        await replied(chat)
        await chat.press("f6")
        asked, about = await chat.sent(Attend), await chat.sent(DescribePrompt)
        await chat.shows("Asking the engine")
        await chat.press("1", "enter", "shift+left", "shift+down", "pagedown")
        if kind == "attention":
            problem = Attended(asked.request_id, asked.turn_id, asked.index, problem="[/INST] is gone \x1b[2J.")
            chat.engine.emit(described(about), problem)
        else:
            chat.engine.emit(PromptDescribed(about.request_id, about.turn_id, problem="[/INST] is gone \x1b[2J."))
        await chat.shows("[/INST] is gone ␛[2J.")
        no_control_characters(chat)


async def test_of_a_long_conversation_only_what_is_in_view_is_drawn(
    open_chat: OpenChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch: a line drawn for each of thousands of positions, at every key."""
    drawn: list[int] = []
    real = attention._line
    monkeypatch.setattr(
        attention, "_line", lambda layout, number, *more: drawn.append(number) or real(layout, number, *more)
    )
    async with open_chat(size=(80, 24)) as chat:
        chat.engine.answers = False
        await replied(chat)
        await chat.press("f6", "a")
        asked, about = await chat.sent(Attend), await chat.sent(DescribePrompt)
        pieces = tuple(Piece(number, b" w%d" % number, 0) for number in range(8188))
        spans = (Span(0, len(pieces), "person", "user"),)
        chat.engine.emit(PromptDescribed(about.request_id, about.turn_id, pieces, spans))
        weights = (0.5, *[0.5 / 8190] * 8190)
        chat.engine.emit(
            Attended(asked.request_id, asked.turn_id, asked.index, 15, 0, weights, layers=30, heads=9, kv_heads=3)
        )
        await chat.shows("8,190 ␣is · reply")
        drawn.clear()
        await chat.press("shift+up")
        assert 0 < len(set(drawn)) <= 2 * 24 + 1
        await chat.press("1")
        await chat.shows("0 ␣w0 · you · 50 %")
        for _ in range(3):
            await chat.press("pagedown")
        assert chat.screen.glass.view == "attention"


# ---------------------------------------------------------------------------------------------------------------------
# What it is drawn from


@given(
    weights=st.lists(st.floats(0, 1), min_size=1, max_size=60).filter(lambda found: sum(found) > 1e-3),
    without_first=st.booleans(),
    first=st.integers(0, 5),
)
def test_a_row(weights: list[float], without_first: bool, first: int) -> None:
    """A row sums to one, also without its first position; levels go by halves of the largest, which has the highest;
    the list has the largest in order. Would catch a rescaling that forgets the rest, and a level off by one."""
    first = min(first, len(weights) - 1)
    weights = [0.0] * first + weights[first:]
    total = math.fsum(weights)
    if total <= 1e-3:
        return
    answer = Attended(1, 1, 1, 0, 0, tuple(weight / total for weight in weights), first, None, (), 2, 2, 2)
    row = AttentionRow(answer, without_first=without_first)
    left_out = without_first and not first and len(weights) > 1
    assert (row.left_out is not None) == left_out
    rest = 1 - (row.left_out or 0)
    if rest > 1e-6:
        assert row.sum == pytest.approx(1, abs=1e-6)
        for position, weight in enumerate(row.weights):
            expected = 0 if left_out and not position else answer.weights[position] / rest
            assert weight == pytest.approx(expected, rel=1e-4, abs=1e-9)
        assert row.level(row.largest[0]) == 4
        assert 0 <= row.bits <= math.log2(len(weights)) + 1e-6
    listed = [row.weights[position] for position in row.largest]
    assert listed == sorted(row.weights[first:], reverse=True)[:9]
    for position, weight in enumerate(row.weights):
        level, halvings = row.level(position), -math.log2(weight / row.most) if weight > 0 else math.inf
        if abs(halvings - round(halvings) if halvings < 9 else 1) > 1e-9:  # not at a border
            assert level == (4 - int(halvings) if halvings < 5 else None)


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=80),
    reply=st.lists(st.integers(0, 12), max_size=40),
    width=st.integers(12, 100),
)
def test_every_position_has_its_place(lengths: list[int], reply: list[int], width: int) -> None:
    """In order, each once, where it is drawn and where a click finds it, no line wider than there is room, and a reply
    that grows is laid out as one that is there at once."""
    pieces = tuple(Piece(n, b"x" * length + b"\n" * (length % 7 == 6), 0) for n, length in enumerate(lengths))
    cut = len(pieces) // 2
    spans = tuple(Span(a, b, "person", "user") for a, b in ((0, cut), (cut, len(pieces))) if a < b)
    told = PromptDescribed(1, 1, pieces, spans)
    tokens = [TokenEmitted(1, n, n, b"y" * length, "") for n, length in enumerate(reply)]
    layout, grown = AttentionLayout(told, width), AttentionLayout(told, width)
    layout.follow(tokens)
    for count in range(len(tokens) + 1):
        grown.follow(tokens[:count])
    found = []
    for number in range(len(layout)):
        chips = layout.chips(number)
        assert chips == grown.chips(number)
        assert chips[-1].end <= width
        line = "".join(text for text, _ in attention._line(layout, number, None, -1))[attention._GUTTER :]
        for chip in chips:
            assert line[chip.start :].startswith(f"{chip.label}  ")
            assert layout.line_of(chip.position) == number
            assert [layout.at(number, cell) for cell in (chip.start, chip.end - 1)] == [chip.position] * 2
            assert layout.beside(chip.position, 0) == chip.position
            assert layout.source(chip.position) == ("you" if chip.position < len(pieces) else "reply")
            found.append(chip.position)
    assert found == list(range(len(pieces) + len(tokens)))
    assert len(layout) == len(grown)


def test_where_the_focus_goes() -> None:
    """Layers end, heads go around; leaving several heads or layers goes back to the one looked at last."""
    sent: list[Attend] = []
    focus = AttentionFocus(sent.append)
    focus.start_anew(4)
    focus.ask(1, 0)
    assert (sent[-1].layer, sent[-1].head) == (2, None)
    focus.take(attended(sent[-1]))
    focus.move_layer(5)
    assert focus.layer == 3
    focus.move_head(1)
    assert (focus.mode, focus.head) == ("head", 0)
    focus.move_head(-1)
    assert focus.head == 8
    focus.ask(1, 0)
    assert (sent[-1].layer, sent[-1].head) == (3, 8)
    stale = sent[-1].request_id - 1
    focus.take(replace(attended(sent[-1]), request_id=stale))
    assert focus.attended is not None
    assert focus.attended.request_id == stale, "the one before, answered once"
    focus.next_mode()
    focus.next_mode()
    assert focus.mode == "maximum"
    focus.move_layer(-1)
    assert (focus.mode, focus.layer) == ("mean", 3)
    focus.start_anew(2)
    assert (focus.mode, focus.layer, focus.attended) == ("mean", 1, None)
