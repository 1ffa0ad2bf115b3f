"""The view of BPE, key by key, on a large and a small screen, and how its lines are laid out."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nasty import NASTY
from screen_driver import Chat, OpenChat, no_control_characters
from scripted_glass import walk_of, walked

from tinychat.protocol import BpeWalk, ExplainText, Merge, Split, Symbol, TextExplained, TokenizerReady
from tinychat.ui.split_flow import SplitFlow
from tinychat.ui.views import merge_rows
from tinychat.ui.widgets.line_widget import Line, cells

SIZES = [(160, 48), (80, 24)]


def drawn(line: Line) -> str:
    return "".join(text for text, _ in line)


async def looking_at(chat: Chat, walk: BpeWalk | None, problem: str = "") -> None:
    """Open the view on a walk that a test has made up."""
    chat.engine.answers = False
    chat.screen.editor.put("x")
    await chat.press("f6", "b")
    asked = await chat.sent(ExplainText)
    chat.engine.emit(TextExplained(asked.request_id, walk, problem))
    await chat.until(lambda: chat.screen.glass.typed.explained is not None)


@pytest.mark.parametrize("size", SIZES)
async def test_a_split_is_walked_merge_by_merge_and_back(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a pair marked that isn't the next, ranks below the wrong gap, a walk that ends without ids."""
    async with open_chat(size=size) as chat:
        chat.screen.editor.put("low lower")
        await chat.press("f6", "b")
        await chat.shows("the draft: 4 tokens")
        await chat.shows("split 1 of 2 · 0 of 2 merges")
        await chat.shows("▏low ▏␣lower ")
        await chat.press("right")
        await chat.shows("split 2 of 2 · 0 of 3 merges")
        await chat.shows("␣   l   o   w   e━━━r")
        await chat.shows("  –   3   –   –   1 ")
        await chat.shows("e + r → id 1001: rank 1, the lowest of 2 pairs, before 3")
        await chat.shows("› " + "    1        1  ␣ l o w e+r")
        await chat.press("down")
        await chat.shows("1 of 3 merges")
        await chat.shows("␣   l━━━o   w   er")
        await chat.shows("l + o → id 1003: rank 3, the only pair")
        await chat.press("down", "down")
        await chat.shows("3 of 3 merges")
        await chat.shows("␣  low  er")
        await chat.shows("32 1007 1001")
        await chat.shows("3 tokens: no two neighbours are a pair that was learned.")
        await chat.press("up")
        await chat.shows("␣   lo━━━w   er")
        await chat.press("home")
        await chat.shows("0 of 3 merges")
        await chat.press("end")
        await chat.shows("›   ids 32 1007 1001")
        await chat.press("left")
        await chat.shows("split 1 of 2 · 2 of 2 merges")
        await chat.shows("›   ids 1007")
        await chat.press("home", "right", "ctrl+left")
        await chat.shows("split 1 of 2 · 0 of 2 merges")


async def test_the_view_follows_what_is_typed(open_chat: OpenChat) -> None:
    """Would catch: a walk of the text before, a focus that stays behind, and a message taken for the draft."""
    async with open_chat(size=(80, 24), view="bpe") as chat:
        await chat.shows("Nothing to look at yet: type something.")
        await chat.type("hi")
        await chat.shows("the draft: 1 token")
        await chat.shows("split 1 of 1 · 0 of 1 merge")
        await chat.shows("h + i → id 2200: rank 1,200")
        await chat.type(" low")
        await chat.shows("the draft: 3 tokens")
        await chat.shows("split 2 of 2")
        await chat.shows("␣   l━━━o   w")
        await chat.press("enter")
        await chat.shows("your last message: 3 tokens")
        await chat.answer("Well")
        await chat.shows("your last message: 3 tokens")
        assert "Well▁" not in chat.text, "a view of the prompt leaves the reply a text"
        await chat.type("er")
        await chat.shows("the draft: 1 token")
        await chat.press("backspace", "backspace")
        await chat.shows("your last message")
        await chat.press("ctrl+n")
        await chat.shows("Nothing to look at yet")


async def test_the_vocabulary_is_enough(open_chat: OpenChat) -> None:
    """Would catch: a view that waits for weights it doesn't need, and one that asks before there is a vocabulary."""
    async with open_chat(loaded=False, view="bpe") as chat:
        chat.screen.editor.put("hi")
        await chat.shows("No vocabulary has been read yet")
        assert not chat.engine.sent(ExplainText)
        chat.engine.emit(TokenizerReady(chat.engine.load_id, "v", 9))
        await chat.shows("the draft: 1 token")
        await chat.load(vocabulary="another")
        assert (await chat.sent(ExplainText, 2)).text == "hi", "another vocabulary merges in another way"
        await chat.shows("the draft: 1 token")


async def test_closed_it_costs_nothing_and_open_it_asks_for_the_latest(open_chat: OpenChat) -> None:
    """Would catch: questions for a view nobody sees, a question a key, and texts asked for that are past."""
    async with open_chat() as chat:
        await chat.type("lo")
        await chat.pilot.pause(0.2)
        assert not chat.engine.sent(ExplainText)
        chat.engine.answers = False
        await chat.press("f6", "b")
        asked = await chat.sent(ExplainText)
        await chat.press("f6")
        await chat.type("wer")
        await chat.pilot.pause(0.2)
        assert [each.text for each in chat.engine.sent(ExplainText)] == ["lo"]
        chat.engine.emit(TextExplained(asked.request_id, walk_of(["lo"])))
        asked = await chat.sent(ExplainText, 2)
        assert asked.text == "lower"
        chat.engine.emit(TextExplained(asked.request_id, walk_of(["lower"])))
        await chat.shows("the draft: 2 tokens")
        await chat.press("escape")
        await chat.type(" er")
        await chat.pilot.pause(0.2)
        assert len(chat.engine.sent(ExplainText)) == 2


async def test_a_reply_that_runs_draws_nothing_anew(open_chat: OpenChat) -> None:
    """Would catch: every token of a reply paying for the walk again."""
    async with open_chat(view="bpe") as chat:
        await chat.ask("low lower")
        await chat.shows("your last message: 4 tokens")
        view = chat.screen.pane.shown
        assert view is not None
        before = view.compose_lines(view.size.width)
        chat.engine.say("a", "b", "c")
        await chat.shows("abc")
        assert view.compose_lines(view.size.width) is before
        await chat.press("f6", "down")
        assert view.compose_lines(view.size.width) is not before


UNWALKED = [
    (Split("whole", b"hi", (Symbol(b"hi", 7),), tokens=(Symbol(b"hi", 7),), note="It is whole."), "It is whole."),
    (Split("long", b"x" * 900, (), tokens=(Symbol(b"x", 88),) * 900, note="It is too long."), "It is too long."),
    (Split("added", b"<tool>", tokens=(Symbol(b"<tool>", 9),)), "An added token, found before the text is cut."),
    (Split("control", b"<|end|>", tokens=(Symbol(b"<|end|>", 2),)), "A control token, found before the text is cut."),
    (Split("merged", "é".encode(), lost="é".encode()), "No token stands for é: the model doesn't see it."),
]  # fmt: skip


@pytest.mark.parametrize(("split", "says"), UNWALKED, ids=lambda each: each.kind if isinstance(each, Split) else "")
@pytest.mark.parametrize("size", SIZES)
async def test_what_is_not_merged_says_why(open_chat: OpenChat, size: tuple[int, int], split: Split, says: str) -> None:
    """Would catch: a split without merges and without a word, or without its ids."""
    async with open_chat(size=size) as chat:
        await looking_at(chat, BpeWalk((split,), 0, None, False))
        await chat.shows(says)
        await chat.shows("split 1 of 1 · 0 of 0 merges")
        await chat.shows(f"ids {split.tokens[0].token_id}" if split.tokens else "ids none")
        if split.kind in ("added", "control"):
            await chat.shows(f"[{split.data.decode()}]")
        await chat.press("down", "up", "end", "home", "left", "right")


@pytest.mark.parametrize("size", SIZES)
async def test_scores_fallbacks_and_what_was_changed_or_left_out(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a SentencePiece walk without its scores, and silence about bytes, normalization or the rest."""
    begun = (Symbol(b"h", 5), Symbol(b"i", 6), Symbol(b"\xf0", 300, "byte"), Symbol("ł".encode(), 0, "unknown"))
    merge = Merge(0, 77, 4, -7.25, (4, None, None))
    split = Split("merged", "hi🦙".encode(), begun, (merge,))
    split = Split("merged", split.data, begun, (merge,), tokens=split.after(1))
    async with open_chat(size=size) as chat:
        await looking_at(chat, BpeWalk((split,), 1234, b" hi", True))
        await chat.shows("h + i → id 77: rank 4 by score -7.25, the only pair")
        await chat.shows("h━━━i   <F0>   ł")
        await chat.shows("Byte fallback: characters that are no token begin")
        await chat.shows("Characters that are no token become the one for unknown characters.")
        await chat.shows("Normalized before it is cut: the splits show what it becomes.")
        await chat.shows("1,234 more splits are not explained: the text is too long.")
        await chat.shows("the beginning of the draft: 3 tokens")
        await chat.press("end")
        await chat.shows("77 300  0")
        if size[1] > 40:
            await chat.shows("score")


@pytest.mark.parametrize("size", SIZES)
async def test_no_walk_is_a_sentence(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a problem that is kept from a person, or that reaches the terminal raw."""
    async with open_chat(size=size) as chat:
        await looking_at(chat, None, "[/INST] is gone \x1b[2J.")
        await chat.shows("[/INST] is gone ␛[2J.")
        await chat.press("down", "right", "end", "enter")
        no_control_characters(chat)


async def test_a_text_of_which_nothing_is_left_is_a_sentence(open_chat: OpenChat) -> None:
    """Would catch: a crash where the vocabulary's normalizer takes the whole text away."""
    async with open_chat() as chat:
        await looking_at(chat, BpeWalk((), 0, b"", True))
        await chat.shows("Nothing is left of this text")
        await chat.press("down", "right", "end", "home")


async def test_clicks_go_to_splits_and_merges(open_chat: OpenChat) -> None:
    """Would catch: a click that finds the neighbour."""
    async with open_chat() as chat:
        chat.screen.editor.put("日本 low lower er")
        await chat.press("f6", "b")
        await chat.shows("split 1 of 4")
        rows = chat.text.splitlines()
        y = next(y for y, row in enumerate(rows) if "▏␣lower" in row)
        before, _, _ = rows[y].partition("▏␣lower")
        await chat.pilot.click(offset=(len(before) + 2 + 3, y))  # after two characters that are two cells wide
        await chat.shows("split 3 of 4 · 0 of 3 merges")
        rows = chat.text.splitlines()
        y = next(y for y, row in enumerate(rows) if "    3        7" in row)
        await chat.pilot.click(offset=(rows[y].index("3        7"), y))
        await chat.shows("2 of 3 merges")


@pytest.mark.parametrize("size", SIZES)
async def test_foreign_text_is_inert_in_the_walk(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a split, symbol or note that is parsed as markup or reaches the terminal raw."""
    kinds = ("merged", "whole", "long", "added", "control")
    splits = [walked(text.encode("utf-8", "surrogatepass")) for text in [*NASTY, "שלום", "e\u0301", "\u200b", "🦙", ""]]
    for number, text in enumerate(NASTY):
        data = text.encode("utf-8", "surrogatepass")
        token = Symbol(data, number, "unknown")
        splits.append(Split(kinds[number % 5], data, (token,), (), data, (token,), f"Note {text}."))
    async with open_chat(size=size) as chat:
        await looking_at(chat, BpeWalk(tuple(splits), 0, None, False))
        for number in range(1, len(splits) + 1):
            await chat.shows(f"split {number} of {len(splits)}")
            no_control_characters(chat)
            await chat.press("right", "down")
        no_control_characters(chat)
        assert chat.app.is_running


words = st.lists(
    st.sampled_from(["low", "lower", "er", "hi", "日本", " ", "\n", "🦙", "lowlowlow", "x" * 60]), max_size=30
)


@given(words.filter(bool), st.integers(60, 160))
def test_rows_of_a_long_split_fit_and_show_the_next_pair(parts: list[str], width: int) -> None:
    """Would catch: a window over a long split that is too wide, or that leaves out what it is about."""
    split = walked("".join(parts).encode())
    for count, merge in enumerate(split.merges):
        left, right = (merge_rows.name(symbol) for symbol in split.after(count)[merge.at : merge.at + 2])
        upper, lower = merge_rows.state(split, count, width)
        row = merge_rows.step(split, count, width, here=True)
        assert max(map(cells, (upper, lower, row))) <= width
        assert f"{left}━" in drawn(upper)
        assert f"━{right}" in drawn(upper)
        assert f"{left}+{right}" in drawn(row)
        gap = cells(((drawn(upper).partition("━")[0], ""),))
        assert drawn(lower)[gap:].startswith(f" {merge.rank:,} "), "the lower line has a cell a character"
    assert all(cells(line) <= width for line in merge_rows.state(split, len(split.merges), width))
    ids = chain.from_iterable(
        drawn(line).replace("›   ids", "").split() for line in merge_rows.ids(split, width, here=True)
    )
    assert [*map(int, ids)] == [token.token_id for token in split.tokens]


@given(words, st.integers(10, 160), st.integers(1, 4))
def test_every_split_has_one_chip_in_the_lines(parts: list[str], width: int, rows: int) -> None:
    """Would catch: a split lost at a line's end, a line too wide, and a focus out of view."""
    splits = walk_of(parts).splits
    flow = SplitFlow(splits, width)
    placed = [chip for line in flow.lines for chip in line]
    assert [chip.index for chip in placed] == list(range(len(splits)))
    assert all(chip.end <= width for chip in placed)
    for index in range(len(splits)):
        lines = flow.around(index, rows)
        assert len(lines) == min(rows, len(flow.lines))
        assert any(chip.index == index for line in lines for chip in line)
