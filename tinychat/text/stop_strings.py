"""Ending a streamed text at a stop string, of which nothing is ever shown."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Looks for stop strings in one streamed text.

    Held back is only the longest end of the text that can still become a stop string. The one that ends first wins; of
    several that end together, the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Start a text; no stop may be empty."""
        assert "" not in stops
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Take more text; return what may be shown of all that was held, and whether a stop string was met.

        After a match the rest is dropped, and nothing more may be fed.
        """
        text = self._held + text
        matches = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            _, start = min(matches)
            self._held = ""
            return text[:start], True
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                self._held = tail
                return text[:-length], False
        self._held = ""
        return text, False

    def flush(self) -> str:
        """Return what was held back, at the end of a text that met no stop string."""
        held, self._held = self._held, ""
        return held
