"""Bars of block characters whose parts differ in glyph as well as in colour."""

from __future__ import annotations

from tinychat.ui.widgets.line_widget import Line

REUSED, NEW, REST, FREE, COPY, KEPT = "█", "▓", "▒", "·", "▚", "░"
"""Found again, added, something else, free, held twice, kept to be told: six glyphs that stay apart without colour."""

_EIGHTHS = " ▏▎▍▌▋▊▉"


def used_bar(width: int, reused: int, used: int, whole: int) -> Line:
    """Return a bar of `width` cells, drawn to an eighth of a cell.

    Args:
        width: Cells.
        reused: How much of `used` was there before.
        used: How much of `whole` is taken; anything more than nothing is seen.
        whole: What the full width stands for.
    """
    eighths = 8 * width
    end = max(1, min(eighths, round(used / whole * eighths))) if used and whole else 0
    kept = round(end * min(reused / used, 1.0)) if used else 0
    old = kept // 8
    full = end // 8
    tip = _EIGHTHS[end % 8] if end % 8 else ""
    if end == kept:
        return (
            (REUSED * full + tip, "gauge--reused"),
            (FREE * (width - full - len(tip)), "gauge--free"),
        )
    return (
        (REUSED * old, "gauge--reused"),
        (NEW * (full - old), "gauge--new"),
        (tip, "gauge--new"),
        (FREE * (width - full - len(tip)), "gauge--free"),
    )


def stacked_bar(width: int, parts: tuple[tuple[int, str, str], ...]) -> Line:
    """Return a bar of `width` cells made of (amount, glyph, component class); every part that is there gets a cell."""
    whole = sum(amount for amount, _, _ in parts)
    if whole <= 0 or width <= 0:
        return ()
    sizes = [max(1, amount * width // whole) if amount > 0 else 0 for amount, _, _ in parts]
    sizes[sizes.index(max(sizes))] += width - sum(sizes)
    return tuple((glyph * size, name) for size, (_, glyph, name) in zip(sizes, parts, strict=True))


def share_bar(share: float, width: int) -> str:
    """Return a bar of `width` cells, blank where it ends, drawn to an eighth; anything more than nothing is seen."""
    eighths = round(min(max(share, 0.0), 1.0) * 8 * width)
    if share > 0:
        eighths = max(1, eighths)
    return (REUSED * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(width)
