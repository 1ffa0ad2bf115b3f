"""The machine's memory: what the model takes, what the program takes, what is left."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.protocol import MemoryStats
from tinychat.ui import figures
from tinychat.ui.widgets.gauge import COPY, FREE, KEPT, NEW, REST, REUSED, stacked_bar
from tinychat.ui.widgets.line_widget import Line, LineWidget, spread


class MemoryGauge(LineWidget):
    """Weights, a copy of them for prompts, cache, the rest of the process and what is free, as one bar and a table."""

    HELP = """
**Memory.** `█` weights, `▚` their bf16 copy for long prompts where there is one, `▓` caches as far as they are written
(the rest is reserved, but the system gives it only when it is touched), `░` what is kept of the tokens of replies, to
tell why each was said, `▒` the rest of this process, `·` what the machine could still give.
"""

    COMPONENT_CLASSES = {
        "gauge--title", "gauge--text", "gauge--weights", "gauge--copy", "gauge--cache", "gauge--kept",
        "gauge--rest", "gauge--free",
    }  # fmt: skip

    DEFAULT_CSS = """
    MemoryGauge {
        height: auto;
        & .gauge--title { color: $foreground; text-style: bold; }
        & .gauge--text { color: $quiet; }
        & .gauge--weights { color: $primary; }
        & .gauge--copy { color: $gauge-reused; }
        & .gauge--cache { color: $gauge-new; }
        & .gauge--kept { color: $accent; }
        & .gauge--rest { color: $secondary; }
        & .gauge--free { color: $gauge-free; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._stats: MemoryStats | None = None

    def show(self, stats: MemoryStats) -> None:
        """Show the memory as it is now."""
        self._stats = stats
        self.update_lines()

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return heading, bar and a line a part."""
        stats = self._stats
        if stats is None:
            return [spread((("Memory", "gauge--title"),), (("not measured yet", "gauge--text"),), width, (" ", ""))]
        memory = figures.memory
        rest = max(0, stats.process - stats.weights - stats.cache_used - stats.kept)
        weights = stats.weights - stats.copy
        cache = f"{memory(stats.cache_used)} of {memory(stats.cache_reserved)}"
        rows = [
            (weights, REUSED, "gauge--weights", "weights", memory(weights)),
            (stats.copy, COPY, "gauge--copy", "copy", memory(stats.copy)),
            (stats.cache_used, NEW, "gauge--cache", "cache", cache),
            (stats.kept, KEPT, "gauge--kept", "kept of tokens", memory(stats.kept)),
            (rest, REST, "gauge--rest", "program", memory(rest)),
            (stats.available, FREE, "gauge--free", "free", memory(stats.available)),
        ]
        rows = [row for row in rows if row[0] or row[3] not in ("copy", "kept of tokens")]
        process = f"process {memory(stats.process)}"
        return [
            spread((("Memory", "gauge--title"),), ((process, "gauge--text"),), width, (" ", "")),
            stacked_bar(width, tuple(row[:3] for row in rows)),
            *(
                spread(((f"{glyph} ", name), (label, "gauge--text")), ((figure, "gauge--text"),), width, (" ", ""))
                for _, glyph, name, label, figure in rows
            ),
        ]
