"""What the engine is doing, in words and as a fraction: the status line's text for every phase."""

from __future__ import annotations

from dataclasses import dataclass

from tinychat.protocol import DownloadProgress, ModelLoading, PrefillProgress
from tinychat.ui import figures
from tinychat.ui.conversation import Conversation, Phase

Progress = DownloadProgress | ModelLoading | PrefillProgress | None
"""The engine's latest word on how far it is."""


@dataclass(frozen=True, slots=True)
class Activity:
    """One line of status."""

    label: str = ""
    fraction: float | None = None
    """How much of it is done; None where that isn't known."""
    detail: str = ""


def activity(chat: Conversation, progress: Progress, queued: bool) -> Activity:
    """Describe the phase of `chat`.

    Args:
        chat: The conversation.
        progress: The latest progress of this phase, None before the first.
        queued: Whether a draft waits to be sent as soon as that is possible.
    """
    waits = "your message waits" if queued else ""
    match chat.phase, progress:
        case Phase.LOADING, DownloadProgress(file=file, done=done, total=total):
            size = f"{figures.memory(done)} of {figures.memory(total)}" if total else figures.memory(done)
            fraction = done / total if total else None
            return Activity(f"downloading {file}", fraction, f"{size} · {waits}" if waits else size)
        case Phase.LOADING, ModelLoading(stage=stage, fraction=fraction):
            return Activity(stage, fraction, waits)
        case Phase.LOADING, _:
            return Activity(f"loading {chat.name}", None, waits)
        case Phase.PREFILL, PrefillProgress(done=done, total=total, reused=reused):
            kept = f", {figures.count(reused)} reused" if reused else ""
            detail = f"{figures.count(done)} of {figures.count(total)} tokens{kept}"
            return Activity("prefill", done / total if total else None, f"{detail} · {waits}" if waits else detail)
        case Phase.PREFILL, _:
            return Activity("prefill", None, waits)
        case Phase.DECODE, _ if chat.pacing.waits_at is not None:
            keys = "F7 goes on · F8 makes one token"
            detail = f"{keys} · {waits}" if waits else keys
            return Activity(f"PAUSED before token {chat.pacing.waits_at + 1}", None, detail)
        case Phase.DECODE, _:
            limit = f" · at most {chat.pacing.rate:g} a second" if chat.pacing.rate else ""
            label = f"answering · {figures.tokens(chat.speed.total)}{limit}"
            return Activity(label, None, waits or chat.acceptance.describe())
        case Phase.STOPPING, _:
            return Activity("stopping", None, waits)
        case Phase.NO_MODEL, _:
            return Activity("no model · Ctrl+L loads it again")
        case _:
            return Activity()
