"""What is said below a reply once it has ended: why it ended, what it cost, and what to do now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tinychat.chats import Turn
from tinychat.protocol import EngineFailed, TurnFinished
from tinychat.ui import figures
from tinychat.ui.acceptance import acceptance

Tone = Literal["quiet", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Remark:
    """One sentence below a turn."""

    text: str
    tone: Tone = "quiet"


NOTHING_SAID: Final = Remark("Nothing was said, so the model will not be told of this question. Ctrl+R asks again.")
TAKEN_BACK: Final = Remark("Your message is back in the prompt; the model will not be told of this one.")


def remarks(finished: TurnFinished, turn: Turn | None, context: int) -> list[Remark]:
    """Say how a reply ended. Of one that an error ended, the error itself is told by `failure`, which follows.

    Args:
        finished: The engine's last word on it.
        turn: The turn it became, None where its conversation is gone.
        context: Tokens the caches hold.
    """
    lines: list[Remark] = []
    match finished.reason:
        case "context":
            full = f"The context of {figures.tokens(context)} is full. Ctrl+N begins a new chat."
            lines.append(Remark(full, "warning"))
        case "length":
            lines.append(Remark(f"Stopped at the limit of {figures.tokens(finished.new_tokens)}."))
        case "cancelled":
            lines.append(Remark("Stopped by you."))
    if turn is not None and not turn.said and finished.reason != "failed":
        lines.append(NOTHING_SAID)
    if finished.new_tokens:
        lines.append(Remark(_cost(finished)))
    return lines


def ended(turn: Turn) -> list[Remark]:
    """Say how a reply from before ended, of which the engine says nothing any more."""
    lines = {
        "cancelled": "Stopped by you.",
        "length": "Stopped at the limit of tokens.",
        "context": "The context was full.",
        "failed": "An error ended this.",
        "cut": "tinychat ended while this was being said.",
        "edited": "Written by you.",
    }
    told = [Remark(lines[turn.reason])] if turn.reason in lines else []
    return told if turn.said or turn.role == "user" or turn.reason is None else [*told, NOTHING_SAID]


def failure(failed: EngineFailed) -> list[Remark]:
    """Say what went wrong and what to do."""
    return [Remark(failed.summary, "error"), *([Remark(failed.remedy)] if failed.remedy else [])]


def _cost(finished: TurnFinished) -> str:
    """Return the figures of a reply, those that tell nothing left out."""
    figure = figures.count
    parts = [figures.tokens(finished.new_tokens)]
    if finished.decode_rate:
        parts.append(figures.rate(finished.decode_rate))
    parts.append(f"first token {figures.duration(finished.first_token_seconds)}")
    reused = f", {figure(finished.reused_tokens)} reused" if finished.reused_tokens else ""
    parts.append(f"prompt {figure(finished.prompt_tokens)}{reused}")
    parts.append(f"seed {finished.seed}")
    if finished.drafted:
        parts.append(acceptance(finished.accepted, finished.drafted))
    # Where it takes two lines, it is broken after a dot and nowhere else.
    return "\xa0· ".join(part.replace(" ", "\xa0") for part in parts)
