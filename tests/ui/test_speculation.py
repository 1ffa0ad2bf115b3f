"""Speculation on the screen: the switch beside the sliders, the marks of accepted tokens, the acceptance rate."""

from __future__ import annotations

from screen_driver import Chat, OpenChat

from tinychat.protocol import Generate, SamplerSettings, SetSampler, TokenEmitted
from tinychat.ui.acceptance import Acceptance, acceptance
from tinychat.ui.bridge import TokenRun
from tinychat.ui.widgets.line_widget import Line
from tinychat.ui.widgets.speculation_gauge import SpeculationGauge


def tokens(chat: Chat, *marked: tuple[str, bool], drafted: int) -> None:
    """Have the engine give tokens, of which some had been drafted."""
    turn_id = chat.engine.turn_id
    for text, accepted in marked:
        data = text.encode()
        chat.engine.emit(TokenEmitted(turn_id, 0, 7, data, text, accepted=accepted, drafted=drafted))


async def test_the_switch_acts_in_mid_reply(open_chat: OpenChat) -> None:
    """Would catch: a switch that waits for the next reply, loses the other settings, or takes the key for the prompt;
    turning it on again that forgets how far it was."""
    async with open_chat(size=(160, 48)) as chat:
        await chat.ask("Hello")
        assert (await chat.sent(Generate)).sampler.speculate == 0
        await chat.press("f3", *["tab"] * 8)
        await chat.shows("› speculate")
        await chat.shows("speculate from built-in")
        await chat.press("space")
        assert (await chat.sent(SetSampler)).sampler == SamplerSettings(temperature=0.2, top_p=0.9, speculate=8)
        await chat.press("left", "left", "enter")
        assert (await chat.sent(SetSampler, 4)).sampler.speculate == 0
        assert type((await chat.sent(SetSampler, 3)).sampler.speculate) is int
        await chat.press("space")
        assert (await chat.sent(SetSampler, 5)).sampler.speculate == 6
        await chat.press("r")
        assert (await chat.sent(SetSampler, 6)).sampler.speculate == 0
        assert chat.screen.editor.draft == ""


async def test_rate_and_marks(open_chat: OpenChat) -> None:
    """Would catch: a rate that nobody sees, of another reply, or a gauge that is there while nothing is drafted."""
    async with open_chat(size=(160, 48)) as chat:
        await chat.ask("Hello")
        tokens(chat, ("Once", False), drafted=0)
        await chat.shows("answering")
        assert "Speculation" not in chat.text
        tokens(chat, (" upon", True), (" a\n", True), ("\x1b[2J", False), drafted=4)
        await chat.shows("answering · 4 tokens  50 % of 4 drafted tokens accepted")
        await chat.shows("Speculation")
        await chat.shows("50 % of 4 accepted")
        await chat.shows("␣upon␣a↵")
        chat.engine.finish("Once upon a\n", drafted=4, accepted=2)
        await chat.until(lambda: not chat.screen.chat.busy)
        await chat.shows("50 % of 4 drafted tokens accepted")
        await chat.ask("Again")
        tokens(chat, ("No", False), drafted=0)
        await chat.shows("answering · 1 token ")
        assert "answering · 1 token  50" not in chat.text


def test_marks() -> None:
    """Would catch: a mark on the wrong token, marks by colour alone, and a line that is too long."""
    counted = Acceptance()
    run = tuple(TokenEmitted(1, n, 7, f" word{n}".encode(), "", accepted=n % 3 == 0) for n in range(99))
    counted.add(TokenRun(1, 99, "", "", 60, run))
    assert counted.describe() == "55 % of 60 drafted tokens accepted"
    gauge = SpeculationGauge()
    gauge.update_lines = lambda: None  # type: ignore[method-assign]
    gauge.show(counted)
    head, last = gauge.compose_lines(42)

    def text(line: Line) -> str:
        return "".join(part for part, _ in line)

    assert text(head).split() == ["Speculation", "55", "%", "of", "60", "accepted"]
    assert text(last) == "".join(f"␣word{n}" for n in range(93, 99))
    assert [part for part, style in last if style.endswith("accepted")] == ["␣word93", "␣word96"]
    assert "underline" in SpeculationGauge.DEFAULT_CSS


def test_nothing_drafted_says_nothing() -> None:
    """Would catch: "0 % of 0"."""
    assert acceptance(0, 0) == Acceptance().describe() == ""
    assert acceptance(0, 3) == "0 % of 3 drafted tokens accepted"
