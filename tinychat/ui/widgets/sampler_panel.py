"""The sampler: a slider a setting, and where each value came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import DescendantBlur, DescendantFocus
from textual.message import Message

from tinychat.protocol import SamplerSettings
from tinychat.ranges import SAMPLER_RANGES
from tinychat.ui.widgets.heading import Heading
from tinychat.ui.widgets.seed_entry import SeedEntry
from tinychat.ui.widgets.setting import Setting
from tinychat.ui.widgets.slider import Slider
from tinychat.ui.widgets.sources import Sources
from tinychat.ui.widgets.speculation_switch import SpeculationSwitch


def _slider(field: str, label: str, high: float | None = None, **names: float) -> Slider:
    words = tuple((value, word) for word, value in names.items())
    return Slider(field, label, SAMPLER_RANGES[field], high=high, names=words, id=field.replace("_", "-"))


class SamplerPanel(Vertical):
    """Shows one `SamplerSettings` and tells when a person changed it."""

    DEFAULT_CSS = """
    SamplerPanel { height: auto; }
    """

    class Changed(Message):
        """A person changed a setting."""

        def __init__(self, sampler: SamplerSettings) -> None:
            super().__init__()
            self.sampler = sampler
            """All settings as they are now."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.sampler = SamplerSettings()
        self._sources: Mapping[str, str] = {}

    def compose(self) -> ComposeResult:
        """Lay out a line a setting."""
        yield Heading("Sampler")
        yield _slider("temperature", "temperature", 2.0, greedy=0)
        yield _slider("top_k", "top-k", 200, off=0)
        yield _slider("top_p", "top-p", off=1)
        yield _slider("min_p", "min-p", off=0)
        yield _slider("repetition_penalty", "repetition", 2.0, off=1)
        yield _slider("frequency_penalty", "frequency", off=0)
        yield _slider("presence_penalty", "presence", off=0)
        yield SeedEntry(id="seed")
        yield SpeculationSwitch(id="speculate")
        yield Sources()

    def on_mount(self) -> None:
        """Nothing can be set before a model has said what it starts with."""
        for setting in self.query(Setting):
            setting.disabled = True

    def start(self, sampler: SamplerSettings, sources: Mapping[str, str]) -> None:
        """Show what a model starts with.

        Args:
            sampler: Its settings.
            sources: Setting to where its value came from; what is missing is built-in.
        """
        self.sampler, self._sources = sampler, sources
        for setting in self.query(Setting):
            setting.disabled = False
            setting.start(getattr(sampler, setting.field))
        self._explain()

    def show(self, sampler: SamplerSettings) -> None:
        """Show settings that somebody has chosen elsewhere."""
        self.sampler = sampler
        for setting in self.query(Setting):
            setting.value = getattr(sampler, setting.field)
        self._explain()

    def show_seed(self, seed: int) -> None:
        """Show the seed that a reply drew."""
        self.query_one(SeedEntry).show_last(seed)

    @on(Setting.Changed)
    def _change(self, event: Setting.Changed) -> None:
        event.stop()
        changed: dict[str, Any] = {event.setting.field: event.value}
        self.sampler = replace(self.sampler, **changed)
        self.post_message(self.Changed(self.sampler))
        self._explain()

    @on(DescendantFocus)
    @on(DescendantBlur)
    def _explain(self) -> None:
        """Say where the value of the setting in focus came from, or where all of them did."""
        setting = self.screen.focused
        if isinstance(setting, Setting) and setting in self.query(Setting):
            came = f"{setting.label} {self._origin(setting)}"
            if setting.moved and setting.default is not None:
                came += f", before {setting.default:g}"
            self.query_one(Sources).show(f"{came}. Type a number, or r to go back.")
        else:
            self.query_one(Sources).show(self._summary())

    def _origin(self, setting: Setting) -> str:
        return "set by you" if setting.moved else f"from {self._sources.get(setting.field, 'built-in')}"

    def _summary(self) -> str:
        """Name every source once, with the settings it gave; those that are built in are the rest."""
        by_source: dict[str, list[str]] = {}
        for setting in self.query(Setting):
            if setting.moved:
                by_source.setdefault("you", []).append(setting.label)
            elif (source := self._sources.get(setting.field, "built-in")) != "built-in":
                by_source.setdefault(source, []).append(setting.label)
        parts = [f"{', '.join(labels)} from {source}" for source, labels in by_source.items()]
        return "; ".join([*parts, "the rest built-in" if parts else "all built-in"]) + "."
