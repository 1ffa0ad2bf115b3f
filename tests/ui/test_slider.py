"""The slider: keys, mouse, numbers, and a grid that never shows 0.7000000001."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import on
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from tinychat.protocol import MAX_SEED
from tinychat.ranges import SAMPLER_RANGES
from tinychat.ui.themes import variable_defaults
from tinychat.ui.widgets.seed_entry import SeedEntry
from tinychat.ui.widgets.setting import LABEL_CELLS, VALUE_CELLS, Setting
from tinychat.ui.widgets.slider import Slider

FIELDS = {
    "temperature": (2.0, ((0, "greedy"),)),
    "top_k": (200, ((0, "off"),)),
    "top_p": (None, ((1, "off"),)),
    "repetition_penalty": (2.0, ((1, "off"),)),
    "frequency_penalty": (None, ((0, "off"),)),
}


def slider(field: str) -> Slider:
    high, names = FIELDS[field]
    return Slider(field, field.split("_")[0], SAMPLER_RANGES[field], high=high, names=names)  # type: ignore[arg-type]


class Harness(App[None]):
    """One setting, and what it said."""

    CSS = "Setting { width: 40; }"

    def __init__(self, setting: Setting, start: float | None) -> None:
        super().__init__()
        self.setting = setting
        self.first = start
        self.changes: list[float | None] = []
        self.refusals: list[str] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return variable_defaults(self.current_theme)

    def compose(self) -> ComposeResult:
        yield self.setting

    def on_mount(self) -> None:
        self.setting.start(self.first)
        self.setting.focus()

    @on(Setting.Changed)
    def _changed(self, event: Setting.Changed) -> None:
        assert event.control is self.setting
        self.changes.append(event.value)

    @on(Setting.Refused)
    def _refused(self, event: Setting.Refused) -> None:
        self.refusals.append(event.sentence)

    @property
    def line(self) -> str:
        return self.setting.render_line(0).text


@asynccontextmanager
async def harness(setting: Setting, start: float | None) -> AsyncIterator[tuple[Harness, Pilot[None]]]:
    app = Harness(setting, start)
    async with app.run_test(size=(60, 5)) as pilot:
        await pilot.pause()
        yield app, pilot


@pytest.mark.parametrize(
    ("field", "start", "keys", "value"),
    [
        ("temperature", 0.7, "right", 0.75),
        ("temperature", 0.7, "left left", 0.6),
        ("temperature", 0.7, "shift+right", 1.2),
        ("temperature", 0.7, "home", 0.0),
        ("temperature", 0.7, "end", 2.0),
        ("temperature", 0.72, "right", 0.75),
        ("temperature", 0.72, "left", 0.7),
        ("temperature", 3.0, "right", 3.0),
        ("temperature", 3.0, "left", 2.95),
        ("temperature", 0.0, "left", 0.0),
        ("top_k", 40, "right", 41),
        ("top_k", 40, "shift+left", 30),
        ("top_k", 40, "home", 0),
        ("top_k", 5000, "left", 4999),
        ("top_p", 0.9, "end", 1.0),
        ("repetition_penalty", 1.1, "home", 0.01),
        ("frequency_penalty", 0.0, "left", -0.05),
    ],
)
async def test_keys(field: str, start: float, keys: str, value: float) -> None:
    """Would catch: rounding noise, a step beyond the range, a whole number that becomes a fraction."""
    async with harness(slider(field), start) as (app, pilot):
        await pilot.press(*keys.split())
        await pilot.pause()
        assert app.setting.value == value
        assert type(app.setting.value) is type(value) or field != "top_k"
        assert app.changes[-1:] == ([value] if value != start else [])


@given(start=st.integers(0, 40), steps=st.lists(st.sampled_from([-10, -1, 1, 10]), max_size=30))
def test_any_walk_stays_on_the_grid(start: int, steps: list[int]) -> None:
    """Would catch: 14 x 0.05 that isn't 0.7, after whatever way there."""
    setting = slider("temperature")
    setting.set_reactive(Setting.value, start * 0.05)
    setting.post_message = lambda message: True  # type: ignore[method-assign]
    setting.update_lines = lambda: None  # type: ignore[method-assign]
    for step in steps:
        setting.action_step(step)
        assert setting.value == round(round((setting.value or 0) / 0.05) * 0.05, 2)
        assert 0 <= (setting.value or 0) <= 2


@pytest.mark.parametrize(
    ("field", "value", "drawn"),
    [
        ("temperature", 0.0, "greedy"), ("temperature", 0.8, "0.80"), ("temperature", 0.123, "0.123"),
        ("top_k", 0, "off"), ("top_k", 5000, "5000"), ("top_p", 1.0, "off"), ("repetition_penalty", 1.0, "off"),
    ],
)  # fmt: skip
async def test_words(field: str, value: float, drawn: str) -> None:
    """Would catch: a temperature of 0 that doesn't read "greedy"."""
    async with harness(slider(field), value) as (app, _):
        assert app.line.rstrip().endswith(drawn)


async def test_the_bar_fills_from_where_the_setting_is_off() -> None:
    """Would catch: a penalty of 0 that looks half full, and a value beyond the bar that looks like its end."""
    async with harness(slider("frequency_penalty"), 0.0) as (app, pilot):
        assert "━" not in app.line
        await pilot.press("shift+right")
        await pilot.pause()
        bar = app.line[LABEL_CELLS:-VALUE_CELLS]
        assert bar.index("━") >= len(bar) // 2 - 1
        assert bar.index("●") > bar.index("━")
    async with harness(slider("temperature"), 4.0) as (app, _):
        assert "▶" in app.line


@pytest.mark.parametrize(
    ("field", "keys", "value"), [("temperature", "1.25", 1.25), ("top_k", "5000", 5000), ("top_p", ".5", 0.5)]
)
async def test_a_number_can_be_typed(field: str, keys: str, value: float) -> None:
    """Would catch: values that no slider step reaches."""
    async with harness(slider(field), 1) as (app, pilot):
        await pilot.press(*keys)
        await pilot.pause()
        assert app.line.rstrip().endswith(f"{keys}▏")
        assert app.changes == [], "nothing holds before Enter"
        await pilot.press("enter")
        await pilot.pause()
        assert app.changes == [value]


@pytest.mark.parametrize(
    ("field", "keys", "says"),
    [("temperature", "9", "0 to 5"), ("temperature", "1.2.3", "a number"), ("top_k", "1.5", "a whole number"),
     ("repetition_penalty", "0", "above 0 to 5"), ("top_p", "-1", "0 to 1")],
)  # fmt: skip
async def test_a_number_out_of_range_is_refused_and_kept(field: str, keys: str, says: str) -> None:
    """Would catch: a silent clamp, or what was typed thrown away."""
    async with harness(slider(field), 1) as (app, pilot):
        await pilot.press(*keys, "enter")
        await pilot.pause()
        assert says in app.refusals[0]
        assert app.changes == []
        assert app.setting.entry == keys
        await pilot.press("backspace", "escape")
        await pilot.pause()
        assert app.setting.entry is None
        assert app.setting.value == 1


async def test_reset_goes_back_to_the_models_value() -> None:
    """Would catch: a reset to the built-in default instead of what the model came with."""
    async with harness(slider("temperature"), 0.2) as (app, pilot):
        await pilot.press("end", "r")
        await pilot.pause()
        assert app.changes == [2.0, 0.2]
        assert not app.setting.moved


async def test_mouse() -> None:
    """Would catch: a drag that loses the knob, and a click that lands beside it."""
    setting = slider("top_p")
    async with harness(setting, 0.5) as (app, pilot):
        first, last = LABEL_CELLS, 40 - VALUE_CELLS - 1
        await pilot.click(setting, offset=(last, 0))
        await pilot.pause()
        assert setting.value == 1.0
        await pilot.mouse_down(setting, offset=(last, 0))
        await pilot.hover(setting, offset=(first, 0))
        await pilot.mouse_up(setting, offset=(first, 0))
        await pilot.pause()
        assert setting.value == 0.0
        assert app.line[LABEL_CELLS] == "●"
        await pilot.hover(setting, offset=(last, 0))
        await pilot.pause()
        assert setting.value == 0.0, "the drag is over"
        await pilot.click(setting, offset=(last + 4, 0))
        await pilot.press("7", "5", "backspace", "backspace", ".", "7")
        await pilot.press("enter")
        await pilot.pause()
        assert setting.value == 0.7


async def test_leaving_drops_an_entry() -> None:
    """Would catch: half a number that comes back with the focus."""
    async with harness(slider("temperature"), 1.0) as (app, pilot):
        await pilot.press("1", ".")
        app.set_focus(None)
        await pilot.pause()
        assert app.setting.entry is None
        assert app.line.rstrip().endswith("1.00")


async def test_a_seed_is_exact() -> None:
    """Would catch: a 63-bit seed rounded by a float."""
    async with harness(SeedEntry(), None) as (app, pilot):
        assert app.line.rstrip().endswith("random")
        await pilot.press(*str(MAX_SEED), "enter")
        await pilot.pause()
        assert app.changes == [MAX_SEED]
        assert app.line.rstrip().endswith(str(MAX_SEED))
        await pilot.press(*str(MAX_SEED + 1), "enter")
        await pilot.pause()
        assert "whole number from 0" in app.refusals[0]
        await pilot.press("escape", "r")
        await pilot.pause()
        assert app.changes[-1] is None


async def test_the_last_seed_can_be_kept() -> None:
    """Would catch: a reply that can't be had again."""
    seed = SeedEntry()
    async with harness(seed, None) as (app, pilot):
        await pilot.press("l")
        seed.show_last(77)
        await pilot.pause()
        assert app.line.rstrip().endswith("random (77)")
        await pilot.press("l")
        await pilot.pause()
        assert app.changes == [77]
