"""Two conversations side by side, with the pilot: what is shown, what is sent, and that neither disturbs the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nasty import NASTY
from screen_driver import no_control_characters
from scripted_engine import ScriptedEngine
from textual.pilot import Pilot

from tinychat.catalog import HubSource, ModelCard
from tinychat.protocol import (
    Cancel,
    Divergence,
    Generate,
    LoadModel,
    Notice,
    Pace,
    PromptRendered,
    SamplerSettings,
)
from tinychat.ui.beside_app import BesideApp
from tinychat.ui.foreign_text import one_line
from tinychat.ui.screens import beside_screen
from tinychat.ui.screens.beside_screen import BesideScreen

CARD = ModelCard("smollm2", HubSource("org/smollm2"), summary="A small model")
SIZES = [(80, 24), (160, 48)]
QUESTION = "What is the capital of France?"


class Both:
    """A running screen and the hands on it."""

    def __init__(self, app: BesideApp, engines: tuple[ScriptedEngine, ScriptedEngine], pilot: Pilot[None]) -> None:
        self.app, self.engines, self.pilot = app, engines, pilot
        self.a, self.b = engines

    @property
    def screen(self) -> BesideScreen:
        screen = self.app.screen_stack[0]
        assert isinstance(screen, BesideScreen)
        return screen

    @property
    def text(self) -> str:
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text for strip in strips).replace("\xa0", " ")

    def column(self, side: int) -> str:
        """One side of the screen."""
        width = self.app.size.width
        middle = (width - 1) // 2
        lines = self.text.split("\n")
        return "\n".join(line[:middle] if side == 0 else line[middle + 1 :] for line in lines)

    async def until(self, holds: Callable[[], object]) -> None:
        for _ in range(500):
            if holds():
                return
            await self.pilot.pause(0.01)
        raise AssertionError(f"still not so:\n{self.text}")

    async def shows(self, text: str) -> None:
        await self.until(lambda: text in self.text)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def load(self, *, b: dict[str, Any] | None = None, warm: float | None = None) -> None:
        await self.until(lambda: self.a.sent(LoadModel))
        self.a.ready()
        await self.until(lambda: self.b.sent(LoadModel))
        other = {"dtype": "fp32", "head_dtype": "fp32"} if b is None else b
        self.b.ready(SamplerSettings(temperature=0.2 if warm is None else warm, top_p=0.9), **other)
        await self.until(lambda: self.screen.pair.ready)

    async def ask(self, text: str = QUESTION, prompts: tuple[tuple[int, ...], ...] = ((1, 2), (1, 2))) -> None:
        self.screen.editor.put(text)
        await self.press("enter")
        await self.until(lambda: self.screen.pair.busy)
        for engine, ids in zip(self.engines, prompts, strict=True):
            engine.emit(PromptRendered(engine.turn_id, ids, ()))

    def say(self, same: list[str], first: list[str], second: list[str], nats: float | None = 0.25) -> None:
        """Both say the same, and then each something else."""
        for index, piece in enumerate([*same, ""]):
            if nats is not None:
                self.a.emit(Divergence(self.a.turn_id, index, nats * (index + 1)))
            if piece:
                self.a.say(piece)
                self.b.say(piece)
        self.a.say(*first)
        self.b.say(*second)

    async def end(self, first: str, second: str) -> None:
        self.a.finish(first)
        self.b.finish(second)
        await self.until(lambda: not self.screen.pair.busy)


OpenBoth = Callable[..., AbstractAsyncContextManager[Both]]


@pytest.fixture
def open_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OpenBoth:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("IDLE", "WAITING", "_FIGURES_EVERY"):
        monkeypatch.setattr(beside_screen, name, 0.01)
    monkeypatch.setattr(beside_screen, "tick", lambda rate: 0.01)

    @asynccontextmanager
    async def opened(size: tuple[int, int] = (80, 24), loaded: bool = True, **options: Any) -> AsyncIterator[Both]:
        engines = ScriptedEngine(), ScriptedEngine()
        app = BesideApp(engines, (LoadModel(0, CARD), LoadModel(0, CARD, dtype="fp32")), **options)
        app.animation_level = "none"
        async with app.run_test(size=size, notifications=True) as pilot:
            both = Both(app, engines, pilot)
            if loaded:
                await both.load()
            yield both

    return opened


@pytest.mark.parametrize("size", SIZES)
async def test_two_replies_that_part(open_both: OpenBoth, size: tuple[int, int]) -> None:
    """One prompt to both, each reply in its pane, the first difference in both by sign and words, on the same line;
    title, KL, figures. Would catch a pane that shows the other's text, or a mark that only one has."""
    async with open_both(size) as both:
        await both.ask()
        both.say(["The capital", " is"], [" Paris", "."], [" Rome", " of light"])
        await both.shows("≠ first difference")
        assert [each.messages[-1].text for engine in both.engines for each in engine.sent(Generate)] == [QUESTION] * 2
        left, right = both.column(0), both.column(1)
        for column, own, other, name in ((left, "␣Paris", "␣Rome", "B"), (right, "␣Rome", "␣Paris", "A")):
            flat = " ".join(column.split())
            assert f"≠ first difference, token 3: {own} here, {other} in {name}" in flat
        assert "Paris." in left
        assert "of light" not in left
        assert "Rome of light" in right
        lines = [next(n for n, line in enumerate(c.split("\n")) if "≠ first" in line) for c in (left, right)]
        assert lines[0] == lines[1]
        assert "A smollm2" in left
        assert "B smollm2" in right
        assert "int4" in left.split("\n")[1]
        assert "fp32" in right.split("\n")[1]
        await both.shows("mean 0.5 · most 0.75 nats, token 3")
        await both.end("The capital is Paris.", "The capital is Rome of light")
        await both.shows("seed 77")
        assert "≠ first difference" in both.column(0)
        assert "≠ first difference" in both.column(1)


async def test_the_same_text_breaks_into_the_same_lines(open_both: OpenBoth) -> None:
    """At any width: else the eye can't compare."""
    words = [f"word{n} " for n in range(40)]
    for width in (79, 80, 81, 100, 161):
        async with open_both((width, 48)) as both:
            await both.ask()
            both.say(words, [], [])
            await both.end("".join(words), "".join(words))
            await both.shows("word39")
            views = [next(reversed(pane.views.values())) for pane in both.screen.panes]
            texts = [[view.sections[0].line(n)[0].text for n in range(len(view.sections[0]))] for view in views]
            assert texts[0] == texts[1]


async def test_replies_that_say_the_same(open_both: OpenBoth) -> None:
    """No mark, whether they end by themselves or not."""
    async with open_both() as both:
        await both.ask()
        both.say(["Paris", "."], [], [])
        await both.end("Paris.", "Paris.")
        await both.shows("seed 77")
        assert "≠" not in both.text


async def test_one_ends_first(open_both: OpenBoth) -> None:
    """The other goes on by itself; the end is told as the first difference."""
    async with open_both() as both:
        await both.ask()
        both.say(["Paris", "."], [], [])
        both.a.say("")
        both.a.finish("Paris.")
        both.b.say(" Yes", ".")
        await both.until(lambda: "≠ first difference" in both.column(1))
        assert "token 3: the end here, ␣Yes in B" in " ".join(both.column(0).split())
        assert both.screen.pair.busy
        both.b.say(" Really.")
        await both.until(lambda: "Really." in both.column(1))
        both.b.finish("Paris. Yes. Really.")
        await both.until(lambda: not both.screen.pair.busy)


async def test_the_seed_is_one(open_both: OpenBoth) -> None:
    """Drawn anew for each question, the same for both."""
    async with open_both() as both:
        seeds = []
        for _ in range(2):
            await both.ask()
            first, second = (engine.sent(Generate)[-1].sampler.seed for engine in both.engines)
            assert first == second is not None
            seeds.append(first)
            await both.end("", "")
        assert seeds[0] != seeds[1]


@pytest.mark.parametrize(("seeds", "used"), [((5, None), (5, 5)), ((None, 6), (6, 6)), ((5, 6), (5, 6))])
async def test_a_seed_that_was_asked_for(open_both: OpenBoth, seeds: Any, used: Any) -> None:
    """Holds for both, unless each has its own, which is then said."""
    async with open_both(loaded=False) as both:
        await both.until(lambda: both.a.sent(LoadModel))
        both.a.ready(SamplerSettings(seed=seeds[0]))
        await both.until(lambda: both.b.sent(LoadModel))
        both.b.ready(SamplerSettings(seed=seeds[1]))
        await both.until(lambda: both.screen.pair.ready)
        await both.ask()
        assert tuple(engine.sent(Generate)[-1].sampler.seed for engine in both.engines) == used
        assert ("seed 6" in both.column(1)) == (seeds == (5, 6))


async def test_settings_that_differ_are_in_the_titles(open_both: OpenBoth) -> None:
    """And only those."""
    async with open_both((160, 48), loaded=False) as both:
        await both.load(warm=1.0)
        await both.shows("fp32 · temperature 1 · head fp32")
        await both.shows("int4 · temperature 0.2 · head bf16")
        assert "top-p" not in both.text


async def test_each_goes_on_from_what_it_said(open_both: OpenBoth) -> None:
    """Would catch: one history for both. And where the prompts differ there is no KL, which is said."""
    async with open_both() as both:
        await both.ask()
        both.say(["I"], [" am"], [" was"])
        await both.end("I am", "I was")
        await both.ask("And?", ((1, 2, 3), (1, 2, 4)))
        said = [[message.text for message in engine.sent(Generate)[-1].messages] for engine in both.engines]
        assert said == [[QUESTION, "I am", "And?"], [QUESTION, "I was", "And?"]]
        await both.shows("none: two prompts, since the replies before parted")


async def test_two_vocabularies(open_both: OpenBoth) -> None:
    """Aligned by bytes, and said; no KL."""
    async with open_both(loaded=False) as both:
        await both.load(b={"vocabulary": "another"})
        await both.shows("none: two vocabularies; tokens are aligned by bytes")
        await both.ask()
        both.a.say("unbe", "liev", "able", " A")
        both.b.say("un", "believ", "able", " B")
        await both.press("ctrl+g")
        await both.shows("unbe|liev")
        assert any("unbe|liev" in line and "un|believ" in line for line in both.text.split("\n"))
        await both.shows("≠   4")


@pytest.mark.parametrize("size", SIZES)
async def test_tokens_side_by_side(open_both: OpenBoth, size: tuple[int, int]) -> None:
    """A line for what belongs together, with both probabilities and KL; the keys scroll it, and F5 finds the mark."""
    async with open_both(size) as both:
        await both.ask()
        both.say([f"w{n} " for n in range(60)], ["x ", "y "], ["z "])
        await both.press("ctrl+g")
        await both.shows("≠  61")
        row = next(line for line in both.text.split("\n") if "≠  61" in line)
        assert "x␣" in row
        assert "z␣" in row
        assert row.rstrip().endswith("15")  # 61 times 0.25
        assert not any(line.startswith("    1 ") for line in both.text.split("\n"))
        await both.press("ctrl+g", "home")
        await both.until(lambda: any(line.startswith("    1 ") for line in both.text.split("\n")))
        assert "95%" in next(line for line in both.text.split("\n") if line.startswith("    1 "))
        await both.press("f5")
        await both.shows("≠  61")
        assert both.column(0).split("\n")[2:12] != []
        await both.until(lambda: "≠ first" in both.column(0) and "≠ first" in both.column(1))
        await both.press("end", "up", "down")
        await both.press("ctrl+g")
        await both.until(lambda: "KL nats" not in both.text)
        assert both.screen.focused is both.screen.editor


async def test_escape_stops_both(open_both: OpenBoth) -> None:
    """And a second prompt waits its turn: the draft is kept."""
    async with open_both() as both:
        await both.ask()
        both.a.say("a")
        both.b.say("b")
        both.screen.editor.put("More")
        await both.press("enter")
        await both.shows("One question at a time")
        await both.press("escape")
        for engine in both.engines:
            await both.until(lambda engine=engine: engine.sent(Cancel))
            assert engine.sent(Cancel)[-1].turn_id == engine.turn_id
            engine.finish("a", "cancelled")
        await both.shows("Stopped by you.")
        assert both.screen.editor.draft == "More"


async def test_pause_and_step_are_for_both(open_both: OpenBoth) -> None:
    """Said in the status line; and they go on together."""
    async with open_both() as both:
        await both.ask()
        await both.press("f7")
        for engine in both.engines:
            await both.until(lambda engine=engine: engine.sent(Pace))
            assert engine.sent(Pace)[-1].mode == "pause"
            engine.pause()
        await both.shows("PAUSED before token 1")
        await both.press("f8")
        for engine in both.engines:
            await both.until(lambda engine=engine: len(engine.sent(Pace)) == 2)
            assert engine.sent(Pace)[-1].mode == "step"
            engine.say("x")
            engine.pause()
        await both.shows("PAUSED before token 2")
        await both.press("f7")
        for engine in both.engines:
            await both.until(lambda engine=engine: engine.sent(Pace)[-1].mode == "play")


async def test_a_failure_of_one_leaves_the_other(open_both: OpenBoth) -> None:
    """Its sentence stands in its pane; the other goes on."""
    async with open_both() as both:
        await both.ask()
        both.say(["The"], [], [])
        both.a.finish("The", "failed")
        both.a.fail("The machine ran out of memory.", "Choose a smaller model.", turn_id=both.a.turn_id)
        await both.until(lambda: "ran out of memory" in both.column(0))
        both.b.say(" end")
        await both.until(lambda: "The end" in both.column(1))
        assert "ran out" not in both.column(1)
        both.b.finish("The end")
        await both.until(lambda: both.screen.pair.ready)


async def test_a_notice_in_the_middle_of_a_reply(open_both: OpenBoth) -> None:
    """It stays below the text that comes after it, and is not gone on with."""
    async with open_both() as both:
        await both.ask()
        both.say(["The"], [], [])
        await both.until(lambda: "The" in both.column(0))
        both.a.emit(Notice("Mind the gap.", both.a.turn_id))
        await both.shows("Mind the gap.")
        both.a.say(" capital", " is")
        both.b.say(" capital", " was")
        await both.shows("≠ first difference")
        both.a.say(" Paris")
        await both.shows("is Paris")
        lines = [line.strip() for line in both.column(0).split("\n")]
        assert lines.index("is Paris") < next(n for n, line in enumerate(lines) if "Mind the gap." in line)


async def test_one_that_can_t_be_loaded(open_both: OpenBoth) -> None:
    """The other is loaded all the same, and answers alone; Ctrl+L tries again."""
    async with open_both((160, 48), loaded=False) as both:
        await both.until(lambda: both.a.sent(LoadModel))
        assert not both.b.sent(LoadModel), "one after the other"
        await both.shows("waits for A")
        both.a.fail("There is no such file.", "Name another.", load_id=both.a.load_id)
        await both.until(lambda: both.b.sent(LoadModel))
        both.b.ready()
        await both.until(lambda: both.screen.pair.ready)
        assert "There is no such file." in both.column(0)
        await both.until(lambda: "no model" in both.column(0))
        both.screen.editor.put("Hi")
        await both.press("enter")
        await both.until(lambda: both.b.sent(Generate))
        assert not both.a.sent(Generate)
        both.b.say("Hello")
        both.b.finish("Hello")
        await both.until(lambda: "Hello" in both.column(1) and both.screen.pair.ready)
        await both.press("ctrl+l")
        await both.until(lambda: len(both.a.sent(LoadModel)) == 2)
        both.a.ready()
        await both.until(lambda: both.screen.pair.sides[0].info is not None)
        assert len(both.b.sent(LoadModel)) == 1


async def test_a_load_is_stopped(open_both: OpenBoth) -> None:
    """Both are: the second one isn't begun by the end of the first."""
    async with open_both(loaded=False) as both:
        await both.until(lambda: both.a.sent(LoadModel))
        await both.press("escape")
        await both.until(lambda: both.a.sent(Cancel))
        both.a.fail("Loading was stopped.", "", load_id=both.a.load_id, cancelled=True)
        await both.shows("no model · Ctrl+L loads them again")
        assert not both.b.sent(LoadModel)
        await both.press("ctrl+l")
        await both.until(lambda: len(both.a.sent(LoadModel)) == 2)
        both.a.ready()
        await both.until(lambda: both.b.sent(LoadModel))


async def test_a_prompt_that_waits_for_the_models(open_both: OpenBoth) -> None:
    """Typed while they load, sent when both are there."""
    async with open_both(loaded=False) as both:
        both.screen.editor.put("Hi")
        await both.press("enter")
        await both.shows("sent when the models are ready")
        await both.until(lambda: both.a.sent(LoadModel))
        both.a.ready()
        await both.until(lambda: both.b.sent(LoadModel))
        assert not both.a.sent(Generate), "not before both are there"
        both.b.ready()
        await both.until(lambda: both.a.sent(Generate) and both.b.sent(Generate))


async def test_again_and_anew(open_both: OpenBoth) -> None:
    """Regenerate takes both replies off; a new chat empties both."""
    async with open_both() as both:
        await both.ask()
        both.say(["Paris"], [" a"], [" b"])
        await both.end("Paris a", "Paris b")
        await both.press("ctrl+r")
        await both.until(lambda: all(len(engine.sent(Generate)) == 2 for engine in both.engines))
        await both.until(lambda: "Paris" not in both.text)
        both.say(["Rome"], [], [])
        await both.end("Rome", "Rome")
        await both.press("ctrl+n")
        await both.until(lambda: "Rome" not in both.text)
        assert both.column(0).count("new chat") == both.column(1).count("new chat") == 1


async def test_thinking_that_parts(open_both: OpenBoth) -> None:
    """The first difference lies in what isn't shown: it is said above the answer, whose text is whole."""
    async with open_both(loaded=False) as both:
        await both.load(b={"thinking": True})
        await both.ask()
        both.a.say("yes", thinking=True)
        both.b.say("no", thinking=True)
        both.a.say("Paris", " it is")
        both.b.say("Paris", " it is")
        await both.until(lambda: "≠ first difference, token 1" in both.column(0))
        both.a.finish("Paris it is", thinking="yes")
        both.b.finish("Paris it is", thinking="no")
        await both.until(lambda: not both.screen.pair.busy)
        assert "Paris it is" in both.column(0)
        await both.press("ctrl+t")
        await both.until(lambda: "▾ thought" in both.column(0))


@pytest.mark.parametrize("size", SIZES)
async def test_foreign_text_is_inert(open_both: OpenBoth, size: tuple[int, int]) -> None:
    """In replies, marks, tokens, notices, errors: markup is shown as it is, nothing is obeyed."""
    async with open_both(size) as both:
        await both.press("ctrl+g")
        for text in NASTY:
            await both.ask(text.replace("\r", "x"))
            await both.until(lambda: both.screen.pair.busy)
            both.say([text, text], [f"1{text}"], [f"2{text}"])
            for engine in both.engines:
                engine.emit(Notice(f"Notice {text}.", engine.turn_id))
            await both.until(lambda: both.text.count("≠ first") >= 1)
            no_control_characters(both)  # type: ignore[arg-type]
            both.a.fail(text, text, turn_id=both.a.turn_id)
            both.b.finish(text)
            await both.until(lambda: not both.screen.pair.busy)
            await both.pilot.pause()
            no_control_characters(both)  # type: ignore[arg-type]
            assert one_line(text)[:4] in both.text.replace("\n", "")
            assert both.app.is_running
            await both.press("ctrl+n")
            await both.until(lambda: "≠ first" not in both.text)


@pytest.mark.parametrize("data", [b"\xf0\x9f", b"\xff\xfe", b"\x00", "é".encode()[:1]])
async def test_pieces_that_are_no_characters(open_both: OpenBoth, data: bytes) -> None:
    """Would catch: a piece decoded strictly, or drawn raw."""
    async with open_both() as both:
        await both.ask()
        await both.press("ctrl+g")
        both.say(["a"], [], [])
        for engine, end in zip(both.engines, (b"1", b"2"), strict=True):
            engine.say("\udc80")
            token = engine._outbox[-1]
            engine._outbox[-1] = type(token)(token.turn_id, token.index, 5, data + end, "x", "", -1.0, 1, 1.0)
        await both.shows("≠   2")
        no_control_characters(both)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(80, 24), (160, 48), (40, 12), (20, 5), (10, 3)])
async def test_any_size(open_both: OpenBoth, size: tuple[int, int]) -> None:
    """Nothing breaks, however small; the prompt is there at last."""
    async with open_both(size) as both:
        await both.ask()
        both.say(["The capital", " is"], [" Paris"], [" Rome"])
        await both.press("ctrl+g", "f1", "escape", "pageup", "pagedown", "ctrl+end", "ctrl+g")
        await both.end("The capital is Paris", "The capital is Rome")
        assert both.app.is_running
        assert ">" in both.text


async def test_help_tells_of_kl(open_both: OpenBoth) -> None:
    """What it is, where it ends, and whose word it is."""
    async with open_both((160, 48)) as both:
        await both.press("f1")
        await both.shows("Kullback and Leibler 1951")
        assert "as long as both have read the same ids" in " ".join(both.text.split())


async def test_letters_go_to_the_prompt(open_both: OpenBoth) -> None:
    """Wherever the focus is."""
    async with open_both() as both:
        await both.press("ctrl+g", "ctrl+g", "x", "y")
        assert both.screen.editor.draft == "xy"
        await both.press("ctrl+c")
        assert both.screen.editor.draft == ""
