"""How far a download or a load is: one line of stderr that is written over, or a few lines where that can't be."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from tinychat.cli.console import Notices
from tinychat.ui import figures

_PATIENCE: Final = 0.4
"""Seconds before anything is shown: what is done by then needs no progress."""
_CELLS: Final = 24
"""Length of the bar."""
_LINE_EVERY: Final = 10.0
"""Seconds between two lines of a download where lines can't be written over."""


class Progress:
    """Shows stages and bytes; takes its line away in the end."""

    def __init__(self, notices: Notices, name: str) -> None:
        """Show the progress of the model `name`."""
        self._notices = notices
        self._name = name
        self._started = time.monotonic()
        self._next_line = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._notices.clear()

    def stage(self, what: str, fraction: float) -> None:
        """Show what is being done, and how much of all is done."""
        if time.monotonic() - self._started >= _PATIENCE:
            self._notices.status(f"{self._name} {_bar(fraction)} {what}")

    def bytes(self, _file: str, done: int, total: int) -> None:
        """Show the bytes that are here; `total` is 0 where it isn't known."""
        known = f"{figures.memory(done)} of {figures.memory(total)}" if total else figures.memory(done)
        if self._notices.rewrites:
            self._notices.status(f"{self._name} {_bar(done / total if total else 0)} downloading {known}")
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY
            self._notices.line(f"downloading {self._name}: {known}")


def _bar(fraction: float) -> str:
    full = round(_CELLS * min(max(fraction, 0.0), 1.0))
    return f"[{'#' * full}{'-' * (_CELLS - full)}]"
