"""The key-value cache: what is used of what is reserved, and how much of it this turn found there."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.protocol import CacheBlocks, CacheStats, LayerCache
from tinychat.ui import figures
from tinychat.ui.widgets.gauge import FREE, NEW, REUSED, used_bar
from tinychat.ui.widgets.line_widget import Line, LineWidget, Span, spread

_LAYER_BAR = 5
"""The least cells a layer's bar is drawn in."""


class CacheGauge(LineWidget):
    """A bar for all layers and one a layer; the numbers are those of the tensors themselves."""

    HELP = """
**The KV cache.** Each layer keeps keys and values of every token, so that a token is computed once.
`█` was in the cache before this turn, `▓` was computed in it, `·` is reserved and free.
"""

    COMPONENT_CLASSES = {"gauge--title", "gauge--text", "gauge--full", "gauge--reused", "gauge--new", "gauge--free"}

    DEFAULT_CSS = """
    CacheGauge {
        height: auto;
        & .gauge--title { color: $foreground; text-style: bold; }
        & .gauge--text { color: $quiet; }
        & .gauge--full { color: $error; text-style: bold; }
        & .gauge--reused { color: $gauge-reused; }
        & .gauge--new { color: $gauge-new; }
        & .gauge--free { color: $gauge-free; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._stats: CacheStats | None = None

    def show(self, stats: CacheStats) -> None:
        """Show the caches as they are now."""
        self._stats = stats
        self.update_lines()

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return heading, bar, legend, bytes, and the layers in columns."""
        stats = self._stats
        if stats is None or not stats.layers:
            return [spread((("KV cache", "gauge--title"),), (("none yet", "gauge--text"),), width, (" ", ""))]
        fullest = max(stats.layers, key=lambda layer: layer.used_tokens)
        used, reserved = fullest.used_tokens, fullest.reserved_tokens
        reused = min(stats.reused_tokens, used)
        style = "gauge--full" if used * 10 >= reserved * 9 else "gauge--text"
        tokens = f"{figures.count(used)} of {figures.count(reserved)} tokens"
        legend: Line = (
            (f"{REUSED} ", "gauge--reused"),
            (f"{figures.count(reused)} reused  ", "gauge--text"),
            (f"{NEW} ", "gauge--new"),
            (f"{figures.count(used - reused)} new", "gauge--text"),
        )
        return [
            spread((("KV cache", "gauge--title"),), ((tokens, style),), width, (" ", "")),
            used_bar(width, reused, used, reserved),
            spread(legend, ((f"{FREE} ", "gauge--free"), ("free", "gauge--text")), width, (" ", "")),
            ((_bytes(stats.layers), "gauge--text"),),
            ((_blocks(stats.blocks), "gauge--text"),),
            *_columns(stats, width),
        ]


def _bytes(layers: Sequence[LayerCache]) -> str:
    """Return "7.3 MB of 188 MB in 30 layers, bf16", true to the tensors."""
    used = figures.memory(sum(layer.used_bytes for layer in layers))
    reserved = figures.memory(sum(layer.reserved_bytes for layer in layers))
    dtypes = "/".join(dict.fromkeys(layer.dtype for layer in layers))
    return f"{used} of {reserved} in {len(layers)} layers, {dtypes}"


def _blocks(blocks: CacheBlocks) -> str:
    """Return "blocks: 12 used, 3 shared, 308 free", and how often one was lacking."""
    lacking = f", {blocks.failures:,} lacking" if blocks.failures else ""
    return f"blocks: {blocks.used:,} used, {blocks.shared:,} shared, {blocks.free:,} free{lacking}"


def _columns(stats: CacheStats, width: int) -> list[Line]:
    """Return the layers' bars, read down the columns; as many columns as fit."""
    layers = stats.layers
    digits = len(str(len(layers) - 1))
    columns = max(1, min(len(layers), (width + 2) // (digits + 1 + _LAYER_BAR + 2)))
    bar = max(1, (width + 2) // columns - digits - 3)
    rows = -(-len(layers) // columns)
    lines: list[Line] = []
    for row in range(rows):
        line: list[Span] = []
        for index in range(row, len(layers), rows):
            layer = layers[index]
            reused = min(stats.reused_tokens, layer.used_tokens)
            gap = "  " if line else ""
            line.append((f"{gap}{index:>{digits}} ", "gauge--text"))
            line += used_bar(bar, reused, layer.used_tokens, layer.reserved_tokens)
        lines.append(tuple(line))
    return lines
