"""The views of the glass box, key by key, on a large and a small screen."""

from __future__ import annotations

import pytest
from nasty import NASTY
from screen_driver import Chat, OpenChat, no_control_characters

from tinychat.cli.options import VIEWS as NAMED
from tinychat.protocol import (
    Bandwidth,
    Candidate,
    Explain,
    Explained,
    Generate,
    Inspect,
    Piece,
    Profiled,
    PromptDescribed,
    SetViews,
    Span,
)
from tinychat.ui.glass import VIEWS
from tinychat.ui.views.view import View

SIZES = [(160, 48), (80, 24)]
WORDS = ["The", " capital", " of", " France", " is", " Paris", "."]


async def replied(chat: Chat, words: list[str] = WORDS, question: str = "What?") -> None:
    """Have a reply of one token a word."""
    await chat.ask(question)
    chat.engine.prefill(350, 350, 312)
    chat.engine.say(*words)
    chat.engine.finish("".join(words), new_tokens=len(words))
    await chat.until(lambda: not chat.screen.chat.busy)


def focused_view(chat: Chat) -> str:
    return chat.app.focused.NAME if isinstance(chat.app.focused, View) else ""


def test_the_command_line_knows_the_views() -> None:
    """Would catch: a view that `run --view` refuses, or a name that opens none."""
    assert tuple(VIEWS) == NAMED


@pytest.mark.parametrize("size", SIZES)
async def test_every_view_opens_and_explains_itself(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a view that has no key, no room at 80x24, no help, or no paper that it comes from."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        await chat.press("f6")
        for name, key in VIEWS.items():
            await chat.press(key)
            await chat.until(lambda: focused_view(chat) == name)  # noqa: B023
            await chat.shows(f" {key} {name} ")
            view = chat.screen.pane.shown
            assert view is not None
            assert view.size.height >= 8
            assert view.HELP
            assert "arXiv:" in view.HELP or name == "prompt"
            await chat.press("question_mark")
            await chat.shows("Esc closes")
            await chat.until(lambda: len(chat.app.screen_stack) == 2)
            await chat.shows(view.HELP.strip().replace("**", "")[:20])
            await chat.press("escape")
            await chat.until(lambda: len(chat.app.screen_stack) == 1)


@pytest.mark.parametrize("size", SIZES)
async def test_keys_pressed_at_once_reach_the_view(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: the second of two fast keys typed into the prompt."""
    async with open_chat(size=size) as chat:
        await chat.press("f6", "w")
        await chat.until(lambda: focused_view(chat) == "why")
        assert chat.screen.editor.draft == ""
        await chat.press("f6")
        await chat.until(lambda: chat.screen.editor.has_focus)
        await chat.type("why")
        assert chat.screen.editor.draft == "why"
        assert chat.screen.glass.view == "why"


async def test_escape_closes_the_view_and_then_stops_the_reply(open_chat: OpenChat) -> None:
    """Would catch: an Esc that stops the reply somebody is looking into, or one that never does."""
    async with open_chat(size=(80, 24)) as chat:
        await chat.ask("What?")
        chat.engine.say(*WORDS)
        await chat.press("f6", "t")
        await chat.shows("surprise")
        await chat.press("escape")
        await chat.until(lambda: not chat.screen.glass.view and chat.screen.editor.has_focus)
        assert chat.screen.chat.busy
        await chat.press("f6", "f6", "escape")
        assert chat.screen.glass.view, "the prompt has the focus, and a reply to stop goes first"
        await chat.shows("stopping")
        chat.engine.finish("".join(WORDS), "cancelled")
        await chat.until(lambda: not chat.screen.chat.busy)
        await chat.press("escape")
        await chat.until(lambda: not chat.screen.glass.view)


async def test_the_engine_pays_only_for_what_is_open(open_chat: OpenChat) -> None:
    """Would catch: taps that stay on, and ones that are turned on for a view that needs none."""
    async with open_chat() as chat:
        await replied(chat)
        await chat.press("f6", "t", "w", "p")
        await chat.pilot.pause()
        assert not chat.engine.sent(SetViews)
        await chat.press("l")
        assert (await chat.sent(SetViews)).views == frozenset({"layers"})
        await chat.press("m")
        assert (await chat.sent(SetViews, 2)).views == frozenset({"time"})
        await chat.press("escape")
        assert (await chat.sent(SetViews, 3)).views == frozenset()
        before = len(chat.engine.commands)
        await chat.press("f6", "f6")
        await chat.press("f6", "t", "escape")
        await chat.pilot.pause(0.3)
        assert [type(command) for command in chat.engine.commands[before:]] == [SetViews, SetViews]


@pytest.mark.parametrize("name", VIEWS)
async def test_a_view_opens_from_the_command_line_and_the_palette(open_chat: OpenChat, name: str) -> None:
    """Would catch: `run --view` that takes the focus from the prompt, or a palette without the views."""
    async with open_chat(size=(80, 24), view=name) as chat:
        await chat.shows(f"{VIEWS[name]} {name} ")
        assert chat.screen.editor.has_focus
        await chat.press("escape")
        await chat.hides(f"{VIEWS[name]} {name} ")
        command = next(c for c in chat.app.get_system_commands(chat.screen) if c.title.startswith(f"View: {name}"))
        command.callback()
        await chat.until(lambda: focused_view(chat) == name)


@pytest.mark.parametrize("size", SIZES)
async def test_the_tokens_of_a_reply(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: chips without numbers or a legend, a focus that keys don't move, figures of another token."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        await chat.press("ctrl+g")
        await chat.shows("The▁␣capital▃␣of▃␣France▅␣is▇␣Paris▁.▃")
        await chat.shows("surprise (c):")
        await chat.shows("≥ 6 bits")
        # (0.95 · 0.5 · 0.25 · 0.125 · 0.01 · 0.95 · 0.5) to the power of -1/7
        await chat.shows("perplexity 3.92 over 7 tokens")
        await chat.press("f6", "t")
        await chat.shows("7 of 7")
        await chat.press("left", "left", "left")
        await chat.shows("4 of 7")
        await chat.shows("3.00 bits")
        await chat.shows("12.5 %")
        await chat.press("c")
        await chat.shows("probability (c):")
        await chat.shows("The▇␣capital▅␣of▃␣France▂␣is▁␣Paris▇.▅")
        await chat.press("home")
        await chat.shows("1 of 7")
        await chat.press("ctrl+right", "ctrl+left", "right")
        await chat.shows("2 of 7")
        await chat.press("escape")
        await chat.shows("The▇")
        await chat.press("ctrl+g")
        await chat.shows("The capital of France is Paris.")


async def test_a_click_on_a_chip_takes_the_focus_there(open_chat: OpenChat) -> None:
    """Would catch: a click that finds the neighbour, on a wide character most of all, and arrows that don't go on."""
    async with open_chat() as chat:
        await replied(chat, ["日本", "語", " is", " fine\n", "end"])
        await chat.press("ctrl+g", "f6", "t")
        rows = chat.text.splitlines()
        y = next(y for y, row in enumerate(rows) if "日本" in row)
        x = rows[y].index("日本") + 4 + 1  # the second chip, after two characters two cells wide and a glyph
        await chat.pilot.click(offset=(x, y))
        await chat.shows("2 of 5")
        await chat.press("right")
        await chat.shows("3 of 5")
        await chat.press("down")
        await chat.shows("5 of 5")
        await chat.press("up")
        await chat.shows("of 5")
        assert chat.screen.glass.reply is not None
        assert chat.screen.glass.reply.at == 0


async def test_a_focus_stays_in_sight_while_the_reply_grows(open_chat: OpenChat) -> None:
    """Would catch: a person torn away from the token they look at, or left behind once they follow again."""
    async with open_chat(size=(80, 24)) as chat:
        await chat.ask("What?")
        chat.engine.say(*[f" word{n}" for n in range(200)])
        await chat.press("f6", "t")
        await chat.shows("200 of 200")
        await chat.shows("␣word199")
        await chat.press("home")
        await chat.shows("1 of 200")
        await chat.shows("␣word0▁")
        for n in range(200, 300):
            chat.engine.say(f" word{n}")
            if n % 10 == 0:
                await chat.pilot.pause(0.02)
        await chat.shows("1 of 300")
        assert "␣word0▁" in chat.text
        await chat.press("end")
        await chat.shows("300 of 300")
        chat.engine.say(*[f" more{n}" for n in range(100)])
        await chat.shows("␣more99")


async def test_a_running_reply_follows_its_newest_token(open_chat: OpenChat) -> None:
    """Would catch: a focus left behind, one that is torn away from what a person chose, and chips drawn twice."""
    async with open_chat(size=(100, 40)) as chat:
        await chat.ask("What?")
        await chat.press("f6", "t")
        for count in range(1, 60):
            chat.engine.say(f" word{count}")
            if count % 7 == 0:
                await chat.shows(f"{count} of {count}")
        await chat.shows("59 of 59")
        await chat.until(lambda: chat.text.count("word59") == 2)
        assert all(chat.text.count(f"␣word{n}▁") + chat.text.count(f"␣word{n}▃") + chat.text.count(f"␣word{n}▅")
                   + chat.text.count(f"␣word{n}▇") == 1 for n in range(1, 60))  # fmt: skip
        await chat.press("left")
        await chat.shows("58 of 59")
        chat.engine.say(" more")
        await chat.shows("58 of 60")
        await chat.press("end")
        chat.engine.say(" again")
        await chat.shows("61 of 61")


@pytest.mark.parametrize("size", SIZES)
async def test_why_a_token_was_said(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a table without the draw, without what removed a candidate, or of another token than the focus."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        await chat.press("f6", "w", "left")
        await chat.shows("token 6 of 7")
        assert chat.engine.sent(Explain)[-1].index == 5
        assert chat.engine.sent(Explain)[-1].sampler is None
        await chat.shows("as it was")
        # top-p 0.8 keeps three of 0.5, 0.25, 0.125: 0.875 in all
        await chat.shows("draw 0.3000 falls in 0.0000-0.5714: ␣Paris")
        rows = chat.text.splitlines()
        paris = next(row for row in rows if "●␣Paris" in row)
        assert "5432" in paris
        assert "0.500" in paris
        assert "0.571" in paris
        lost = next(row for row in rows if "[/INST]" in row)
        assert "✗" in lost
        await chat.shows("rest of the vocabulary 3.12 % · 3 tokens could be drawn")
        no_control_characters(chat)


@pytest.mark.parametrize("size", SIZES)
async def test_a_slider_recomputes_the_table(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a table that stands still under the slider, or that isn't to be told from what really was."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        await chat.press("f6", "w")
        await chat.shows("as it was")
        await chat.press("f3")
        await chat.until(lambda: chat.app.focused is not None and chat.app.focused.id == "temperature")
        await chat.press("home")
        await chat.shows("by the sliders now")
        await chat.until(lambda: chat.engine.sent(Explain)[-1].sampler == chat.screen.chat.sampler)
        assert chat.engine.sent(Explain)[-1].sampler.temperature == 0
        await chat.shows("greedy")
        await chat.press("f6", "a")
        await chat.shows("as it was")
        await chat.until(lambda: chat.engine.sent(Explain)[-1].sampler is None)


@pytest.mark.parametrize("size", SIZES)
async def test_a_branch_is_a_new_version(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a branch that loses the old reply, repeats the wrong ids, or draws other numbers where it agrees."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        first = chat.engine.turn_id
        ids = [token.token_id for token in chat.screen.chat.replies[first].tokens]
        await chat.press("f6", "w", "left", "left")
        await chat.shows("token 5 of 7")
        await chat.shows("●␣Paris")
        await chat.press("down", "enter")
        command = await chat.sent(Generate, 2)
        assert command.forced_ids == (*ids[:4], 17)
        assert command.branch_of == first
        assert command.sampler.seed == 77
        assert command.messages == chat.engine.sent(Generate)[0].messages
        chat.engine.say(*WORDS[:4], " Lyon", "!")
        chat.engine.finish("The capital of France Lyon!")
        await chat.until(lambda: not chat.screen.chat.busy)
        await chat.press("escape")
        await chat.shows("version 2 of 2, from token 5 of version 1 on")
        await chat.shows("The capital of France Lyon!")
        assert "is Paris" not in chat.text
        await chat.press("alt+left")
        await chat.shows("version 1 of 2")
        await chat.shows("The capital of France is Paris.")
        await chat.shows("seed 77")
        await chat.press("alt+left", "alt+right")
        await chat.shows("France Lyon!")
        await chat.ask("And then?")
        assert [m.text for m in (await chat.sent(Generate, 3)).messages][1] == "The capital of France Lyon!"


async def test_versions_of_an_earlier_reply_bring_what_followed_them(open_chat: OpenChat) -> None:
    """Would catch: a follow-up shown below a version it doesn't follow, or lost with the version it does."""
    async with open_chat() as chat:
        await replied(chat)
        await replied(chat, ["Follow", "-up"], "And?")
        await chat.press("ctrl+up", "f6", "w")
        await chat.shows("token 7 of 7")
        await chat.shows("●␣Paris")
        await chat.press("down", "enter")
        await chat.sent(Generate, 3)
        await chat.hides("And?")
        await chat.answer("Other")
        await chat.press("escape", "alt+left")
        await chat.shows("And?")
        await chat.shows("Follow-up")
        chat.screen.transcript.focus()
        await chat.press("ctrl+up", "right")
        await chat.hides("Follow-up")
        await chat.shows("version 2 of 2")


async def test_what_was_said_already_is_no_branch(open_chat: OpenChat) -> None:
    """Would catch: the same reply computed twice for one Enter too many, and a branch of another model's ids."""
    async with open_chat() as chat:
        await replied(chat)
        reply = chat.screen.chat.replies[chat.engine.turn_id]
        chat.engine.answers = False
        await chat.press("f6", "w")
        asked = await chat.sent(Explain)
        said = reply.tokens[6].token_id
        row = Candidate(said, b".", 1.0, (1.0,), interval=(0.0, 1.0))
        chat.engine.emit(Explained(asked.request_id, asked.turn_id, asked.index, said, candidates=(row,)))
        await chat.shows(f"{said}")
        await chat.press("enter")
        await chat.shows("This is the token that was said.")
        chat.engine.answers = True
        chat.engine.ready(vocabulary="another")
        await chat.until(lambda: chat.screen.chat.info and chat.screen.chat.info.vocabulary == "another")
        await chat.shows("●␣Paris")
        await chat.press("down", "enter")
        await chat.shows("Another model said this")
        assert len(chat.engine.sent(Generate)) == 1


@pytest.mark.parametrize("size", SIZES)
async def test_the_layers(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: layers of another token, a strip without its numbers, and taps asked for twice."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        await chat.press("f6", "l", "left")
        assert (await chat.sent(Inspect)).index in (5, 6)
        await chat.until(lambda: chat.engine.sent(Inspect)[-1].index == 5)
        await chat.shows("token 6 of 7: ␣Paris")
        await chat.shows("recomputed")
        await chat.shows("heads: █ 2.00 nats")
        await chat.shows("▁▂▃▄▅▆▇██")
        await chat.press("down", "down")
        await chat.shows("›     2 30")
        if size[1] > 40:
            await chat.shows("layer 2, residual norm 30")
            await chat.shows("attn out -1.5 to 2.5, mean 0.125, std 0.5")
            await chat.shows("8:2.00")


@pytest.mark.parametrize("size", SIZES)
async def test_the_prompt(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: template and person not told apart, a control token that looks like text, a BOS nobody sees."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        await chat.press("f6", "p")
        await chat.shows("7 tokens: template 6, you 1")
        await chat.shows("piece 1 · id 100 · <s> · control token · 3C 73 3E")
        await chat.shows("template  [<s>]◀ BOS [<|im_start|>]▏user")
        await chat.shows("you       ▏What?")
        await chat.shows("One BOS, at the beginning.")
        await chat.press("end", "left", "left")
        await chat.shows("piece 5 · id 104 · What? · 57 68 61 74 3F")
        await chat.press("i")
        await chat.shows("▏104")


@pytest.mark.parametrize(("bos", "says"), [((), "No BOS"), ((0, 1), "2 BOS at the beginning")])
async def test_a_prompt_that_begins_wrong_says_so(open_chat: OpenChat, bos: tuple[int, ...], says: str) -> None:
    """Would catch: the doubled BOS that every second chat program once sent."""
    async with open_chat() as chat:
        chat.engine.answers = False
        await replied(chat)
        turn_id = chat.engine.turn_id
        await chat.press("f6", "p")
        pieces = (Piece(1, b"<s>", 0, True), Piece(1, b"<s>", 3, True), Piece(5, b"Hi", 6))
        spans = (Span(0, 2, "template", "user"), Span(2, 3, "person", "user"))
        chat.engine.emit(PromptDescribed(1, turn_id, pieces, spans, bos))
        await chat.shows(says)
        assert chat.text.count("◀ BOS") == len(bos)


@pytest.mark.parametrize("size", SIZES)
async def test_the_time(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: prefill and decode mixed up, a limit that forgets the cache, shares that are not of the whole."""
    async with open_chat(size=size) as chat:
        await replied(chat)
        turn_id = chat.engine.turn_id
        await chat.press("f6", "m")
        await chat.shows("38 tokens in 20 ms")
        await chat.shows("312 reused")
        await chat.shows("7 tokens in 28 ms · 212 tok/s")
        await chat.shows("not measured yet")
        chat.engine.emit(Bandwidth(20e9, 100_000_000), Profiled(turn_id, 3, 1.0, 2.0, 0.5, 0.25, 0.25))
        await chat.shows("20 GB/s over 100 MB of weights")
        await chat.until(lambda: chat.screen.glass.bandwidth)
        chat.screen.glass.cache_bytes = 25_000_000
        chat.screen.pane.update()
        await chat.shows("160 tok/s")
        await chat.shows("132 %")
        await chat.shows("token 7: 5 ms")
        if size[1] < 40:
            assert "MLP" not in chat.text
            await chat.press("down", "down", "down", "down", "down", "down", "down", "down")
        await chat.shows("MLP")
        await chat.shows("2.00 ms  50 %")
        await chat.shows("Python")
        await chat.press("up", "up")
        if size[1] < 40:
            await chat.hides("Python")
        await chat.press("pageup")
        await chat.shows("38 tokens in 20 ms")


async def test_the_limit_is_measured_after_the_reply(open_chat: OpenChat) -> None:
    """Would catch: a view that says that something is done while it is open, and is open, and nothing is done."""
    async with open_chat(size=(80, 24)) as chat:
        await chat.ask("What?")
        chat.engine.say(*WORDS)
        await chat.press("f6", "m")
        await chat.shows("not measured yet; it is once the reply has ended")
        chat.engine.finish("".join(WORDS))
        await chat.shows("not measured yet; it is while this view is open")


@pytest.mark.parametrize("size", SIZES)
async def test_foreign_text_is_inert_in_every_view(open_chat: OpenChat, size: tuple[int, int]) -> None:
    """Would catch: a token that is parsed as markup, runs an action, or reaches the terminal raw, in any view."""
    pieces = [text.encode("utf-8", "surrogatepass") for text in NASTY] + [b"\xf0\x9f", b"\xff", "שלום".encode(), b""]
    async with open_chat(size=size) as chat:
        chat.engine.answers = False
        await replied(chat, [*NASTY, "שלום", "e\u0301", "\u200b", "🦙"])
        turn_id = chat.engine.turn_id
        await chat.press("ctrl+g", "f6", "t")
        for _ in range(len(NASTY) + 4):
            await chat.press("left")
            no_control_characters(chat)
        await chat.press("w")
        asked = await chat.sent(Explain)
        rows = tuple(Candidate(n, piece, 0.0, (0.1, 0.1), interval=(n / 99, (n + 1) / 99))
                     for n, piece in enumerate(pieces))  # fmt: skip
        chat.engine.emit(Explained(asked.request_id, turn_id, asked.index, 0, stages=("[/]",), candidates=rows))
        await chat.shows("[/INST]")
        for _ in pieces:
            await chat.press("down")
            no_control_characters(chat)
        await chat.press("p")
        parts = tuple(Piece(n, piece, n) for n, piece in enumerate(pieces))
        chat.engine.emit(PromptDescribed(1, turn_id, parts, (Span(0, len(parts), "person", "[/]\x1b[2J"),), (0,)))
        await chat.shows("tokens: you")
        for _ in pieces:
            await chat.press("right")
            no_control_characters(chat)
        await chat.press("l")
        no_control_characters(chat)
        chat.engine.emit(Explained(99, turn_id, 0, problem="[/INST]\x1b[2J"))
        await chat.press("m")
        no_control_characters(chat)
        assert chat.app.is_running


@pytest.mark.parametrize("problem", ["[/INST] is gone \x1b[2J."])
async def test_no_answer_is_a_sentence(open_chat: OpenChat, problem: str) -> None:
    """Would catch: a view that asks for ever, and silence about why there is nothing."""
    async with open_chat(size=(80, 24)) as chat:
        chat.engine.answers = False
        await replied(chat)
        await chat.press("f6", "w")
        asked = await chat.sent(Explain)
        chat.engine.emit(Explained(asked.request_id, asked.turn_id, asked.index, problem=problem))
        await chat.shows("[/INST] is gone ␛[2J.")
        await chat.press("enter")
        no_control_characters(chat)


@pytest.mark.parametrize("name", VIEWS)
async def test_any_size_another_model_and_a_new_chat_while_a_view_is_open(open_chat: OpenChat, name: str) -> None:
    """Would catch: a crash on a tiny terminal, and a view that shows what is no longer there."""
    async with open_chat(size=(160, 48), view=name) as chat:
        await chat.shows("Nothing to look at yet")
        await replied(chat)
        await chat.hides("Nothing to look at yet")
        for size in [(20, 5), (12, 3), (40, 12), (80, 24), (120, 16), (160, 48)]:
            await chat.pilot.resize_terminal(*size)
            await chat.pilot.pause()
            assert all(len(row) <= size[0] for row in chat.text.splitlines())
        await chat.shows("p prompt")
        chat.engine.ready(name="another", vocabulary="v2")
        await chat.shows("─ another")
        await chat.ask("More?")
        chat.engine.say("Yes")
        await chat.press("ctrl+n")
        chat.engine.finish("Yes", "cancelled")
        await chat.shows("Nothing to look at yet")
        await replied(chat, ["Again"])
        await chat.hides("Nothing to look at yet")


async def test_chips_stay_tellable_apart_without_colour(open_chat: OpenChat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: levels told by colour alone."""
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_chat() as chat:
        await replied(chat)
        await chat.press("ctrl+g")
        await chat.shows("The▁␣capital▃␣of▃␣France▅␣is▇␣Paris▁.▃")


@pytest.mark.parametrize("theme", ["ansi-dark", "tinychat-light"])
async def test_the_views_in_other_themes(open_chat: OpenChat, theme: str) -> None:
    """Would catch: a colour that a theme lacks."""
    async with open_chat(theme=theme) as chat:
        await replied(chat)
        await chat.press("f6")
        for key in VIEWS.values():
            await chat.press(key)
            await chat.pilot.pause(0.05)
        assert chat.app.is_running
