"""Whether weights in blocks get a bf16 copy for long prompts (`Copied` in models/linear.py), and why.

`auto` keeps one where the processor has AMX: by Intel's manual it makes 512 products of bf16 a cycle and core, eight
times the products of 16-bit integers that the blocks' product can make. No such machine was at hand to measure it.

Without AMX both kinds of products go through the same vectors, and the copy has nothing to set against its size, four
times that of 4-bit blocks, and its rounding. On a Xeon with AVX512-BF16 and no AMX, 256 tokens through a layer of
smollm2 took half as long again by the copy as by the blocks, and two to three times as long by a copy made anew for
each call; the next token's distribution was off by 7e-8 nats by the blocks and by 2e-4 by the copy. So where no copy is
kept there is no scratch either: the blocks' own product serves long prompts. Other processors may differ:
`--prefill-copy always` keeps one, and `bench` says what it brings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tinychat.engine import memory

if TYPE_CHECKING:
    from tinychat.engine.loading import Architecture
    from tinychat.models.linear import Abilities
    from tinychat.models.policy import Policy

CHOICES: Final = ("auto", "always", "never")
"""What can be asked for."""
SHARE: Final = 8
"""`auto` keeps a copy that takes less than one part in so many of the free memory."""


@dataclass(frozen=True, slots=True)
class PrefillCopy:
    """What was decided."""

    kept: bool
    nbytes: int
    """What the copy takes, or would."""
    reason: str = ""
    """A sentence; empty where there is nothing to copy, and nobody asked."""
    unexpected: bool = False
    """Whether it isn't what was asked for, or what this processor is expected to do."""


def choose(asked: str, found: Architecture, policy: Policy, free: int) -> tuple[Policy, PrefillCopy]:
    """Return the policy with a copy or without one, and why.

    Args:
        asked: Of `CHOICES`.
        found: The checkpoint; only its header is looked at.
        policy: Without a copy.
        free: Bytes there are, before loading.
    """
    _, planned = found.walk(replace(policy, copy=True))
    copy = judge(asked, policy.can, planned.copy_bytes, free)
    return replace(policy, copy=copy.kept), copy


def judge(asked: str, can: Abilities, nbytes: int, free: int) -> PrefillCopy:
    """Decide about a copy of `nbytes`, which are 0 where no weights of the layers are in blocks."""
    size = memory.gigabytes(nbytes)
    as_they_are = "Long prompts are multiplied by the weights as they are: "
    if not nbytes:
        lacking = f"{as_they_are}none are in blocks, so there is nothing to copy."
        return PrefillCopy(False, 0, lacking if asked == "always" else "", unexpected=asked == "always")
    if asked == "never":
        return PrefillCopy(False, nbytes, f"{as_they_are}a bf16 copy of {size} was not wanted.")
    if not can.bf16:
        why = "this machine has no packed bf16 product for a copy."
        return PrefillCopy(False, nbytes, as_they_are + why, unexpected=asked == "always")
    through = f"Long prompts are multiplied by a bf16 copy of the weights, {size}: "
    if asked == "always":
        return PrefillCopy(True, nbytes, f"{through}it was asked for.")
    if not can.amx:
        return PrefillCopy(False, nbytes, f"{as_they_are}without AMX, a bf16 copy of {size} would gain little.")
    if nbytes * SHARE >= free:
        why = f"a bf16 copy of {size} would take more than an eighth of the {memory.gigabytes(free)} of free memory."
        return PrefillCopy(False, nbytes, as_they_are + why, unexpected=True)
    return PrefillCopy(True, nbytes, f"{through}this processor has AMX.")
