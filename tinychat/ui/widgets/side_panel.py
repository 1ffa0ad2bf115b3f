"""The panel beside the transcript: sampler, pace, speculation, cache, memory."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from tinychat.ui.widgets.cache_gauge import CacheGauge
from tinychat.ui.widgets.memory_gauge import MemoryGauge
from tinychat.ui.widgets.pace_slider import PaceSlider
from tinychat.ui.widgets.sampler_panel import SamplerPanel
from tinychat.ui.widgets.speculation_gauge import SpeculationGauge


class SidePanel(VerticalScroll, can_focus=False):
    """Scrolls where the screen is too low for it."""

    def compose(self) -> ComposeResult:
        """Lay out."""
        yield SamplerPanel(id="sampler")
        yield PaceSlider(id="pace")
        yield SpeculationGauge(id="speculation")
        yield CacheGauge(id="cache")
        yield MemoryGauge(id="memory")
