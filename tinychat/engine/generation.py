"""Making tokens: prefill the prompt in chunks, then decode one token a step.

A Python generator that knows ids only: no thread, no screen, no text. It yields one record a prefill chunk or decode
step; whoever runs it sends new sampler settings back with `.send()`, or closes it to stop.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import torch

from tinychat.engine.context import Context
from tinychat.engine.sampling import Choice, History, choose
from tinychat.engine.speculation import PromptLookup, Speculation
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
    speculation: Speculation | None = None,
) -> Generator[Prefilled | Choice, SamplerSettings | None, None]:
    """Yield a `Prefilled` a chunk, then a `Choice` a token, until the context is full.

    Args:
        context: The caches; whatever prefix of `prompt` they hold is not computed again.
        prompt: At least one id.
        settings: The sampler's, until others are sent; a step's answer acts on the very next token.
        seed: Starts the draws.
        detail: What each choice reports.
        forced: Ids the reply begins with.
        speculation: Guesses ahead, as far as the settings ask for it; None looks into the conversation.

    Whenever it stops, the caches hold what they would hold without speculation.

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
    speculation = speculation or Speculation(PromptLookup())
    ids = [*prompt]
    tokens = context.capacity - len(prompt)
    rows, place = logits[None], 0  # the logits of the next token, then those of the tokens after guessed ones
    try:
        for index in range(tokens):
            logits = rows[place]
            if not bool(torch.isfinite(logits.sum())):
                context.trim(len(ids))
                raise _not_finite(context)
            given = forced[index] if index < len(forced) else None
            choice = choose(logits, settings, history, generator, detail, given, context.model.kernels)
            if accepted := speculation.judge(choice.token_id):
                choice = replace(choice, accepted=True)
            settings = (yield choice) or settings
            history.add(choice.token_id)
            ids.append(choice.token_id)
            if accepted:
                place += 1
            elif index < tokens - 1:
                context.trim(len(ids) - 1)
                # The last token needs no logits after it, and what is dictated needs no guess.
                most = min(settings.speculate, tokens - 2 - index) if index + 1 >= len(forced) else 0
                guessed = speculation.draft(ids, context.ahead(most))
                fed = [choice.token_id, *guessed]
                rows, place = context.verify(fed) if guessed else context.forward(fed)[None], 0
    finally:
        context.trim(len(ids))


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
