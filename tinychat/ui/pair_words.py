"""What there is to say about two replies side by side, in sentences."""

from __future__ import annotations

from typing import Final

from tinychat.pictures import visible_bytes
from tinychat.ui import figures
from tinychat.ui.activity import Activity
from tinychat.ui.alignment import Difference
from tinychat.ui.conversation import Phase
from tinychat.ui.pair import NAMES, Pair
from tinychat.ui.widgets.line_widget import cut

PARTS: Final = "≠"
"""Stands where two replies part."""

_LONGEST: Final = 20
"""Cells of a token that is named in a sentence."""


def parting(pair: Pair, side: int) -> str:
    """Return what stands between what both say and what only this one says; "" as long as they say the same."""
    alignment = pair.alignment
    if alignment is None or alignment.difference is None:
        return ""
    difference = alignment.difference
    own, other = (_token(pair, each, difference) for each in (side, 1 - side))
    at = f"{PARTS} first difference, token {difference.tokens[side] + 1}"
    return f"{at}: {own} here, {other} in {NAMES[1 - side]}"


def parting_place(pair: Pair, side: int) -> int | None:
    """Return the character of a reply's answer before which the two part; None: in no answer, or not at all."""
    alignment = pair.alignment
    if alignment is None or alignment.difference is None:
        return None
    tokens, index = alignment.replies[side].tokens, alignment.difference.tokens[side]
    before = sum(len(token.text) for token in tokens[:index])
    thinks = any(token.thinking for token in tokens[: index + 1]) and not any(t.text for t in tokens[: index + 1])
    return None if thinks else before


def _token(pair: Pair, side: int, difference: Difference) -> str:
    assert pair.alignment is not None
    reply, index = pair.alignment.replies[side], difference.tokens[side]
    if index >= pair.alignment.known(side):
        return "the end"
    return cut(visible_bytes(reply.tokens[index].piece) or "␀", _LONGEST)


def details(pair: Pair, side: int) -> list[str]:
    """Return what tells one side from the other: form of the weights, settings."""
    chat, other = pair.sides[side], pair.sides[1 - side]
    if chat.info is None:
        return []
    head = other.info is not None and other.info.head_dtype != chat.info.head_dtype
    settings = pair.differences(side) or ([] if other.info is None else ["same settings"])
    return [chat.info.dtype, *settings, *([f"head {chat.info.head_dtype}"] if head else [])]


def doing(pair: Pair, queued: bool) -> Activity:
    """Return what both are doing, as a line of status."""
    if pair.loading:
        return Activity("loading", None, "your message waits" if queued else "")
    if any(chat.phase is Phase.STOPPING for chat in pair.sides):
        return Activity("stopping")
    if pair.paused:
        at = next(chat.pacing.waits_at for chat in pair.sides if chat.pacing.waits_at is not None)
        return Activity(f"PAUSED before token {at + 1}", None, "F7 goes on · F8 makes one token of each")
    if pair.busy:
        counts = " · ".join(
            f"{name} {figures.tokens(chat.speed.total)}" for name, chat in zip(NAMES, pair.sides, strict=True)
            if chat.busy
        )  # fmt: skip
        return Activity("answering in turn", None, counts)
    if not any(chat.info for chat in pair.sides):
        return Activity("no model · Ctrl+L loads them again")
    return Activity()


def no_divergence(pair: Pair) -> str:
    """Say why there is no KL; "" where there may be one."""
    if any(chat.info is None for chat in pair.sides):
        return ""
    if not pair.same_vocabulary:
        return "none: two vocabularies; tokens are aligned by bytes"
    if pair.alignment is not None and not pair.same_prompt:
        return "none: two prompts, since the replies before parted"
    return ""
