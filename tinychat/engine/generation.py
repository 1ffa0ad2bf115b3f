"""Making tokens: prefill the prompt in chunks, then decode one token a step.

A Python generator that knows ids only: no thread, no screen, no text. It yields one record a prefill chunk or decode
step; whoever runs it sends new sampler settings back with `.send()`, or closes it to stop.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch

from tinychat.engine.context import Context
from tinychat.engine.sampling import Choice, History, choose
from tinychat.errors import PromptTooLong, TinychatError
from tinychat.models.probe import Probe
from tinychat.protocol import Detail, SamplerSettings

CHUNK = 256
"""Prompt tokens a prefill step takes: large enough for full speed, small enough for Esc and progress."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """So much of the prompt is in the caches."""

    done: int
    total: int
    reused: int


# As a decorator, the mode is on while a step runs and off while the generator waits; `with` would leave it on.
@torch.inference_mode()
def generate(
    context: Context,
    prompt: Sequence[int],
    settings: SamplerSettings,
    *,
    seed: int,
    detail: Detail = "basic",
    forced: Sequence[int] = (),
) -> Generator[Prefilled | Choice, SamplerSettings | None, None]:
    """Yield a `Prefilled` a chunk, then a `Choice` a token, until the context is full.

    Args:
        context: The caches; whatever prefix of `prompt` they hold is not computed again.
        prompt: At least one id.
        settings: The sampler's, until others are sent; a step's answer acts on the very next token.
        seed: Starts the draws.
        detail: What each choice reports.
        forced: Ids the reply begins with.

    Raises:
        PromptTooLong: The prompt leaves no room for a token.
        TinychatError: The model gave logits that are no numbers; the sentence has the layer where that began. Or a
            forced id is no token.
    """
    if len(prompt) >= context.capacity:
        raise PromptTooLong(
            f"The conversation has {len(prompt):,} tokens, but the context holds {context.capacity:,}.",
            "Start a new chat, shorten the message, or load the model with a larger --context.",
        )
    reused = context.reuse(prompt)
    settings = (yield Prefilled(reused, len(prompt), reused)) or settings
    for start in range(reused, len(prompt), CHUNK):
        logits = context.forward(prompt[start : start + CHUNK])
        settings = (yield Prefilled(min(start + CHUNK, len(prompt)), len(prompt), reused)) or settings
    if unknown := [token_id for token_id in forced if not 0 <= token_id < len(logits)]:
        raise TinychatError(f"Token {unknown[0]} is none of this model, whose ids are 0 to {len(logits) - 1:,}.")
    generator = torch.Generator().manual_seed(seed)
    history = History(prompt, len(logits))
    for index in range(context.capacity - len(prompt)):
        if not bool(torch.isfinite(logits.sum())):
            raise _not_finite(context)
        given = forced[index] if index < len(forced) else None
        choice = choose(logits, settings, history, generator, detail, given, context.model.kernels)
        settings = (yield choice) or settings
        history.add(choice.token_id)
        if index < context.capacity - len(prompt) - 1:
            logits = context.forward([choice.token_id])


def _not_finite(context: Context) -> TinychatError:
    """Compute the last token again with open taps, and name the first that holds a NaN or an infinity."""
    last = context.ids[-1]
    context.reuse(context.ids[:])
    probe = Probe()
    context.forward([last], probe)
    bad = next((name for name, tensor in probe.seen.items() if not bool(torch.isfinite(tensor).all())), "the head")
    context.clear()
    return TinychatError(
        f"The model's numbers stopped being finite; the first was in {bad}.",
        "Try another --dtype; if that doesn't help, the file is damaged: fetch it again.",
    )
