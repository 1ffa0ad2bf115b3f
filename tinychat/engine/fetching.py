"""The download thread's work: bring a model's files here, and tell how far it is. It touches files and sockets only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tinychat import hub, models
from tinychat.protocol import DownloadProgress, LoadModel

_EVERY: Final = 0.1
"""Seconds between two reports of a download's bytes."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A download has ended."""

    command: LoadModel
    result: Path | BaseException
    draft: Path | None = None
    """Files of the draft model, where one was asked for."""


def fetch(command: LoadModel, cancelled: threading.Event, tell: Callable[[DownloadProgress], None]) -> Fetched:
    """Fetch the files that a load needs; what goes wrong is in the result."""
    last = 0.0

    def progress(file: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _EVERY or done == total:
            last = now
            tell(DownloadProgress(command.load_id, file, done, total))

    def judge(config: dict[str, Any]) -> None:
        models.architecture(config, command.card.name)

    try:
        path = hub.fetch(command.card, progress, cancelled, judge)
        return Fetched(command, path, None if command.draft is None else hub.fetch(command.draft, progress, cancelled))
    except BaseException as error:
        return Fetched(command, error)
