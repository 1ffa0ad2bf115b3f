"""Themes, keys, palette, leaving."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from screen_driver import OpenChat
from textual.app import SystemCommand
from textual.binding import Binding
from textual.theme import BUILTIN_THEMES

from tinychat.protocol import Cancel, LoadModel
from tinychat.ui.app import ChatApp
from tinychat.ui.commands import key_name
from tinychat.ui.screens.chat import ChatScreen
from tinychat.ui.screens.help import HelpScreen
from tinychat.ui.screens.system_prompt import SystemPromptScreen
from tinychat.ui.views.prompt import PromptView
from tinychat.ui.views.tokens import TokensView
from tinychat.ui.views.view import View
from tinychat.ui.views.why import WhyView
from tinychat.ui.widgets.prompt_editor import PromptEditor
from tinychat.ui.widgets.seed_entry import SeedEntry
from tinychat.ui.widgets.slider import Slider
from tinychat.ui.widgets.speculation_switch import SpeculationSwitch
from tinychat.ui.widgets.transcript import Transcript


@pytest.mark.parametrize("theme", ["tinychat-dark", "tinychat-light", "textual-light", "nord", "ansi-dark"])
async def test_themes_of_ours_and_of_others_work(open_chat: OpenChat, theme: str) -> None:
    """Would catch: a variable that only our themes have, and a style that a theme can't change."""
    if theme not in {*BUILTIN_THEMES, "tinychat-dark", "tinychat-light"}:
        pytest.skip("this Textual has no such theme")
    async with open_chat(theme=theme) as chat:
        assert chat.app.theme == theme
        await chat.ask("Hello")
        await chat.answer("# Hi\n\n```python\nx = 1\n```")
        await chat.shows("x = 1")
        style = chat.screen.query("TurnView").last().style_of("markdown--block")  # type: ignore[attr-defined]
        chat.app.theme = "tinychat-light" if theme != "tinychat-light" else "tinychat-dark"
        await chat.until(
            lambda: chat.screen.query("TurnView").last().style_of("markdown--block") != style  # type: ignore[attr-defined]
        )
        await chat.shows("x = 1")


async def test_no_color_stays_legible(open_chat: OpenChat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: chips, gauges or the focus told apart by colour alone."""
    async with open_chat() as chat:
        monkeypatch.setenv("NO_COLOR", "1")
        await chat.type("two words")
        await chat.shows("▐two▌▐␣words▌")
        await chat.press("f3")
        await chat.shows("› temperature")


async def test_no_colour_is_drawn_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Would catch: strips of our own that go around Textual's filter for NO_COLOR."""
    from scripted_engine import ScriptedEngine

    from tinychat.catalog import HubSource, ModelCard

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    app = ChatApp(ScriptedEngine(), LoadModel(0, ModelCard("m", HubSource("a/b"))))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        for strip in app.screen._compositor.render_strips():
            for segment in strip:
                for color in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                    if color is not None and color.triplet is not None:
                        assert len(set(color.triplet)) == 1, (segment, "is not grey")


async def test_a_bad_theme_file_and_an_unknown_name_are_said(open_chat: OpenChat, tmp_path: Path) -> None:
    """Would catch: a typo in a theme that ends the program, or that nobody hears of."""
    folder = tmp_path / "config" / "tinychat" / "themes"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('[colors]\nprimary = "blurple"')
    async with open_chat(size=(160, 48), theme="nonesuch") as chat:
        await chat.shows("= 'blurple', which is no colour.")
        await chat.shows("There is no theme 'nonesuch'")
        assert chat.app.theme == "tinychat-dark"


async def test_quitting_cancels_what_runs(open_chat: OpenChat) -> None:
    """Would catch: an engine that goes on computing for nobody, and a screen that waits for it."""
    async with open_chat() as chat:
        await chat.ask("Hello")
        chat.engine.say("Hi")
        await chat.press("ctrl+q")
        await chat.until(lambda: not chat.app.is_running)
        assert chat.engine.sent(Cancel)[-1].turn_id == chat.engine.turn_id
        assert chat.app.return_code == 0


async def test_quitting_while_loading_cancels_the_load(open_chat: OpenChat) -> None:
    """Would catch: a download that keeps the program alive."""
    async with open_chat(loaded=False) as chat:
        await chat.sent(LoadModel)
        await chat.press("ctrl+q")
        await chat.until(lambda: not chat.app.is_running)
        assert chat.engine.sent(Cancel)[-1].load_id == chat.engine.load_id


@pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="no such signal here")
async def test_being_terminated_restores_the_terminal(open_chat: OpenChat) -> None:
    """Would catch: a terminal left raw, with the mouse reporting, by a plain kill."""
    async with open_chat() as chat:
        os.kill(os.getpid(), signal.SIGTERM)
        await chat.until(lambda: not chat.app.is_running)
        assert chat.app.return_code == 143


BOUND = [
    ChatApp, ChatScreen, HelpScreen, SystemPromptScreen, PromptEditor, Slider, SeedEntry, SpeculationSwitch, Transcript,
    View, TokensView, WhyView, PromptView,
]  # fmt: skip


@pytest.mark.parametrize("owner", BOUND, ids=lambda owner: owner.__name__)
def test_every_key_is_explained(owner: type[ChatApp]) -> None:
    """Would catch: a key without a help line, or that could not be remapped; and keys that terminals can't send."""
    for binding in Binding.make_bindings(owner.__dict__["BINDINGS"]):
        assert binding.description, binding
        if binding.show:
            assert binding.tooltip, binding
            assert binding.id, binding
        assert binding.key not in ("ctrl+m", "ctrl+i", "ctrl+h"), "the same bytes as Enter, Tab, Backspace"


def test_no_two_bindings_share_an_id() -> None:
    """Would catch: a key map that moves two keys at once."""
    bindings = [b for owner in BOUND for b in Binding.make_bindings(owner.__dict__["BINDINGS"]) if b.id]
    by_id: dict[str, set[str]] = {}
    for binding in bindings:
        by_id.setdefault(str(binding.id), set()).add(binding.action)
    assert all(len(actions) == 1 for actions in by_id.values())


async def test_the_palette_has_what_applies_now(open_chat: OpenChat) -> None:
    """Would catch: an action that has a key but no command, and a command that does nothing."""

    def titles() -> set[str]:
        commands: list[SystemCommand] = list(chat.app.get_system_commands(chat.screen))
        assert all(command.help for command in commands)
        return {command.title for command in commands}

    async with open_chat() as chat:
        before = titles()
        assert {"New chat (Ctrl+N)", "System (F4)", "Theme (F9)", "Panel (F2)", "Help (F1)", "Quit (Ctrl+Q)"} <= before
        assert "Regenerate (Ctrl+R)" not in before
        await chat.ask("Hello")
        await chat.answer("Hi")
        assert {"Regenerate (Ctrl+R)", "Copy (Ctrl+O)", "Raw (F5)"} <= titles()
        await chat.press("ctrl+p")
        await chat.until(lambda: len(chat.app.screen_stack) == 2)
        await chat.type("new chat")
        await chat.shows("New chat (Ctrl+N)")
        await chat.press("enter")
        await chat.hides("Hello")


@pytest.mark.parametrize(
    ("key", "name"), [("ctrl+j", "Ctrl+J"), ("escape", "Esc"), ("f1", "F1"), ("r", "r"), ("shift+left", "Shift+←")]
)
def test_keys_are_named_as_on_keyboards(key: str, name: str) -> None:
    """Would catch: "^j" and "upper_case" in front of people."""
    assert key_name(key) == name
