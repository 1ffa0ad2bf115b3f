"""An error as the event that tells of it."""

from __future__ import annotations

import traceback

from tinychat.errors import Cancelled, TinychatError, UsageError
from tinychat.protocol import EngineFailed


def failure(error: BaseException, *, turn_id: int | None = None, load_id: int | None = None) -> EngineFailed:
    """Tell of an error in sentences; one that nobody foresaw is named as such, with its text."""
    detail = "".join(traceback.format_exception(error))
    if isinstance(error, TinychatError):
        summary, remedy = error.summary, error.remedy
    elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's own is a RuntimeError
        summary, remedy = "The machine ran out of memory.", "Close other programs, or choose a smaller model."
    else:
        summary = f"Something went wrong that tinychat has no sentence for: {type(error).__name__}: {error}"
        remedy = "Run with --debug for the whole story, and please report it."
    stopped, usage = isinstance(error, Cancelled), isinstance(error, UsageError)
    return EngineFailed(summary, remedy, detail, turn_id, load_id, stopped, usage)
