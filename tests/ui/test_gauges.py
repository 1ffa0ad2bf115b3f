"""Gauges: true proportions, four glyphs that need no colour, and no line drawn that hasn't changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import INFO, stats
from textual.geometry import Region

from tinychat.protocol import CacheStats, LayerCache, MemoryStats
from tinychat.ui.widgets.cache_gauge import CacheGauge
from tinychat.ui.widgets.gauge import COPY, FREE, KEPT, NEW, REST, REUSED, stacked_bar, used_bar
from tinychat.ui.widgets.line_widget import Line, LineWidget, cells
from tinychat.ui.widgets.memory_gauge import MemoryGauge


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


@given(width=st.integers(1, 60), whole=st.integers(0, 10**6), used=st.integers(0, 10**6), reused=st.integers(0, 10**6))
def test_a_bar_fills_its_width_and_shows_what_there_is(width: int, whole: int, used: int, reused: int) -> None:
    """Would catch: a bar one cell too long, and a cache in use that looks empty."""
    used = min(used, whole)
    line = used_bar(width, min(reused, used), used, whole)
    drawn = text(line)
    assert len(drawn) == width
    assert (drawn == FREE * width) == (used == 0)


@pytest.mark.parametrize(
    ("reused", "used", "drawn"),
    [(0, 0, "········"), (0, 50, "▓▓▓▓····"), (25, 50, "██▓▓····"), (50, 50, "████····"), (0, 100, "▓▓▓▓▓▓▓▓"),
     (0, 1, "▏·······"), (100, 100, "████████"), (0, 44, "▓▓▓▌····")],
)  # fmt: skip
def test_proportions(reused: int, used: int, drawn: str) -> None:
    """Would catch: reused and new swapped, or told apart by colour alone."""
    assert text(used_bar(8, reused, used, 100)) == drawn


@given(width=st.integers(4, 60), amounts=st.lists(st.integers(0, 10**10), min_size=1, max_size=4))
def test_a_stacked_bar_fills_its_width_and_forgets_no_part(width: int, amounts: list[int]) -> None:
    """Would catch: weights that vanish beside much free memory."""
    line = stacked_bar(width, tuple((amount, str(n), f"part{n}") for n, amount in enumerate(amounts)))
    if sum(amounts):
        assert len(text(line)) == width
        assert all((str(n) in text(line)) == (amount > 0) for n, amount in enumerate(amounts))


def cache_lines(stats: CacheStats, width: int = 38) -> list[str]:
    gauge = CacheGauge()
    gauge.update_lines = lambda: None  # type: ignore[method-assign]
    gauge.show(stats)
    return [text(line) for line in gauge.compose_lines(width)]


@pytest.mark.parametrize("layers", [1, 2, 12, 30, 80])
@pytest.mark.parametrize("width", [10, 24, 38, 60])
def test_every_layer_has_a_bar_and_no_line_is_too_long(layers: int, width: int) -> None:
    """Would catch: a layer left out of the columns, or columns that run over the edge."""
    one = LayerCache(512, 1024, 5, 10, "bf16")
    lines = cache_lines(CacheStats((one,) * layers, 0), width)
    grid = " ".join(lines[5:]).split()
    assert sorted(int(n) for n in grid if n.isdigit()) == list(range(layers))
    if width >= 24:
        assert all(len(line) <= width for line in lines[5:])


def test_layers_may_differ() -> None:
    """Would catch: one layer's figures drawn for all (windows and other layouts make them differ)."""
    big, small = LayerCache(900, 1000, 9, 10, "bf16"), LayerCache(10, 1000, 1, 10, "fp32")
    lines = cache_lines(CacheStats((big, small), 0))
    assert lines[0].endswith("900 of 1,000 tokens")
    assert "bf16/fp32" in lines[3]
    assert lines[5].count(NEW) > 1
    assert lines[5].count(FREE) > lines[5].count(NEW)


def test_a_nearly_full_cache_is_a_warning() -> None:
    """Would catch: a context that ends without notice."""
    gauge = CacheGauge()
    gauge.update_lines = lambda: None  # type: ignore[method-assign]
    for used, style in ((800, "gauge--text"), (960, "gauge--full")):
        cache, _ = stats(replace(INFO, context=1024), used=used)
        gauge.show(cache)
        assert gauge.compose_lines(38)[0][-1][1] == style


def test_memory_adds_up() -> None:
    """Would catch: a part of the process counted twice, or below zero where weights are mapped and not resident."""
    gauge = MemoryGauge()
    gauge.update_lines = lambda: None  # type: ignore[method-assign]
    gauge.show(MemoryStats(100, 10, 50, 200, 1000))
    lines = [text(line) for line in gauge.compose_lines(40)]
    assert lines[0].endswith("process 200 B")
    assert lines[2].split() == [REUSED, "weights", "100", "B"]
    assert lines[3].split() == [NEW, "cache", "10", "B", "of", "50", "B"]
    assert lines[4].split()[-2:] == ["90", "B"]
    gauge.show(MemoryStats(500, 0, 0, 200, 1000))
    assert text(gauge.compose_lines(40)[4]).split()[-2:] == ["0", "B"]


def test_a_copy_of_the_weights_is_a_part_of_its_own() -> None:
    """Would catch: a copy for prompts counted twice or not at all; a row for one that isn't there."""
    gauge = MemoryGauge()
    gauge.update_lines = lambda: None  # type: ignore[method-assign]
    gauge.show(MemoryStats(100, 10, 50, 200, 600, copy=60))
    lines = [text(line) for line in gauge.compose_lines(40)]
    assert [line.split()[:3] for line in lines[2:]] == [
        [REUSED, "weights", "40"],
        [COPY, "copy", "60"],
        [NEW, "cache", "10"],
        [REST, "program", "90"],
        [FREE, "free", "600"],
    ]
    assert {glyph: lines[1].count(glyph) for glyph in (REUSED, COPY, NEW, REST)} == {
        REUSED: 2,
        COPY: 3,
        NEW: 1,
        REST: 4,
    }


def test_only_changed_lines_are_painted() -> None:
    """Would catch: a gauge that repaints itself whole, twice a second, for one figure."""

    class Lines(LineWidget):
        drawn = [(("a", ""),), (("b", ""),), (("c", ""),)]

        def compose_lines(self, width: int) -> list[Line]:
            return list(self.drawn)

    widget = Lines()
    painted: list[Region] = []
    layouts: list[bool] = []

    def refresh(*regions: Region, layout: bool = False, **_: object) -> Lines:
        painted.extend(regions)
        layouts.append(layout)
        return widget

    widget.refresh = refresh  # type: ignore[method-assign,assignment]
    widget._lines, widget._lines_width = tuple(widget.drawn), 0
    widget.update_lines()
    assert painted == []
    widget.drawn = [(("a", ""),), (("B", ""),), (("c", ""),)]
    widget.update_lines()
    assert [region.y for region in painted] == [1]
    assert layouts == [False]
    widget.drawn = widget.drawn[:2]
    widget.update_lines()
    assert layouts == [False, True], "another number of lines needs room"


def test_cells_are_those_drawn() -> None:
    """Would catch: widths measured before control characters became pictures."""
    assert cells((("a\x1b", ""), ("日\n", "x"))) == 5
    assert cells((("\x9b", ""),)) == len("<U+009B>")


def test_what_is_kept_of_tokens_is_a_part_of_its_own() -> None:
    """Would catch: the price of the glass box hidden in the rest of the program, or counted twice."""
    gauge = MemoryGauge()
    gauge.update_lines = lambda: None  # type: ignore[method-assign]
    gauge.show(MemoryStats(100, 10, 50, 200, 600, kept=30))
    rows = [text(line).split() for line in gauge.compose_lines(40)[2:]]
    assert rows[2] == [KEPT, "kept", "of", "tokens", "30", "B"]
    assert rows[3] == [REST, "program", "60", "B"]
