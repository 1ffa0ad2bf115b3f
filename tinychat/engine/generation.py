"""Making tokens: prefill the prompt in chunks, then decode one token a step.

A Python generator that knows ids only: no thread, no screen, no text. It yields one record a prefill chunk or decode
step; whoever runs it sends new sampler settings back with `.send()`, or closes it to stop.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import torch

from tinychat.engine.chain import History
from tinychat.engine.context import Context
from tinychat.engine.sampling import Choice, choose, draw, twin
from tinychat.engine.speculation import PromptLookup, Speculation
from tinychat.engine.watch import Watch
from tinychat.errors import PromptTooLong, TinychatError
from tinychat.models.probe import CLOSED, Probe
from tinychat.protocol import Detail, SamplerSettings

CHUNK = 256
"""Prompt tokens a prefill step takes: large enough for full speed, small enough for Esc and progress."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """So much of the prompt, and of what is dictated, is in the caches."""

    done: int
    total: int
    reused: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """All is there to choose the next token, but it shall not be chosen yet."""

    index: int
    states: torch.Tensor
    """As of `Choice`."""
    row: int
    draw: float
    """The number that will decide."""


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
    known: Sequence[Choice] = (),
    speculation: Speculation | None = None,
    watch: Watch | None = None,
) -> Generator[Prefilled | Choice | Waiting, SamplerSettings | None, None]:
    """Yield a `Prefilled` a chunk, then a `Choice` a token, until the context is full.

    Args:
        context: The caches; whatever prefix of `prompt` and `forced` they hold is not computed again.
        prompt: At least one id.
        settings: The sampler's, until others are sent; a step's answer acts on the very next token.
        seed: Starts the draws.
        detail: What each choice reports.
        forced: Ids the reply begins with; they are computed with the prompt.
        known: Of a reply to the same prompt that begins with the same ids, all but perhaps the last of these: its first
            tokens, with their states. Where they are the same, they are this reply's, too.
        speculation: Guesses ahead, as far as the settings ask for it; None looks into the conversation.
        watch: Who looks on: while it holds the next token up, a `Waiting` is yielded in its place. None: nobody.

    Whenever it stops, the caches hold what they would hold without speculation, and all that was dictated.

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
    vocabulary: int = context.model.config.vocab_size
    if unknown := [token_id for token_id in forced if not 0 <= token_id < vocabulary]:
        raise TinychatError(f"Token {unknown[0]} is none of this model, whose ids are 0 to {vocabulary - 1:,}.")
    watch = watch or Watch()
    fed = [*prompt, *forced][: context.capacity - 1]
    # A position decides the token after it: those that decide dictated tokens are computed, where they aren't known.
    first = len(prompt) - 1 + min(len(known), len(forced))
    decided = [(choice.states, choice.row) for choice in known[: len(forced)] if choice.states is not None]
    reused = context.reuse(fed, first)
    settings = (yield Prefilled(reused, len(fed), reused)) or settings
    for start in range(reused, len(fed), CHUNK):
        chunk = fed[start : start + CHUNK]
        probe = watch.probe(1) if start + CHUNK >= len(fed) else CLOSED
        if forced:
            logits = context.forward(chunk, probe, every_state=True)
            decided += [(state[None].clone(), 0) for state in context.states[max(first - start, 0) :]]
        else:
            logits = context.forward(chunk, probe)
        settings = (yield Prefilled(start + len(chunk), len(fed), reused)) or settings
    generator = torch.Generator().manual_seed(seed)
    history = History(prompt, vocabulary)
    speculation = speculation or Speculation(PromptLookup())
    kernels = context.model.kernels
    ids = [*prompt]
    tokens = context.capacity - len(prompt)
    rows, place = logits[None], 0  # the logits of the next token, then those of the tokens after guessed ones
    read = decided[-1][0] if forced else context.states  # what the head made them of

    def dictated(index: int) -> Choice:
        """Take a token that needs no choice, as far as it is known what there is to report of it."""
        old = known[index] if index < len(known) and known[index].token_id == forced[index] else None
        if old is not None and _reports(old, detail):
            draw(generator)
            return old
        states, row = decided[index]
        logits = rows[0] if detail == "none" else context.model.logits(states)[row]
        _check(logits, context, ids)
        choice = choose(logits, settings, history, generator, detail, forced[index], kernels)
        if old is None:
            return replace(choice, settings=settings, forced=True, states=states, row=row)
        return replace(choice, draw=old.draw, settings=old.settings, forced=old.forced, states=states, row=row)

    def next_token() -> int:
        """Look which token it would be."""
        return choose(rows[place], settings, history, twin(generator), "none", None, kernels).token_id

    try:
        for index in range(tokens):
            accepted = False
            if index < len(forced):
                choice = dictated(index)
            else:
                _check(rows[place], context, ids)
                while watch.holds(next_token):
                    settings = (yield Waiting(index, read, place, draw(twin(generator)))) or settings
                choice = choose(rows[place], settings, history, generator, detail, None, kernels)
                watch.chosen_from(rows[place])
                accepted = speculation.judge(choice.token_id)
                choice = replace(choice, accepted=accepted, settings=settings, states=read, row=place)
            settings = (yield choice) or settings
            history.add(choice.token_id)
            ids.append(choice.token_id)
            if accepted:
                place += 1
            elif len(forced) <= index < tokens - 1:
                context.trim(len(ids) - 1)
                # The last token needs no logits after it.
                guessed = speculation.draft(ids, context.ahead(min(settings.speculate, tokens - 2 - index)))
                step = [choice.token_id, *guessed]
                probe = watch.probe(len(step))
                rows, place = context.verify(step, probe) if guessed else context.forward(step, probe)[None], 0
                read = context.states
    finally:
        context.trim(max(len(ids), len(fed)))


def _reports(choice: Choice, detail: Detail) -> bool:
    """Whether a choice holds what `detail` asks for."""
    return detail == "none" or (choice.logprob is not None and (detail == "basic" or bool(choice.alternatives)))


def _check(logits: torch.Tensor, context: Context, ids: Sequence[int]) -> None:
    """Raise where logits [V] are no numbers: compute what they came of again, with open taps, and name the first tensor
    that holds a NaN or an infinity.

    Raises:
        TinychatError: They are not.
    """
    if bool(torch.isfinite(logits.sum())):
        return
    held = context.reuse(ids)
    probe = Probe()
    context.forward(ids[held:], probe)
    bad = next((name for name, tensor in probe.seen.items() if not bool(torch.isfinite(tensor).all())), "the head")
    context.clear()
    raise TinychatError(
        f"The model's numbers stopped being finite; the first was in {bad}.",
        "Try another --dtype; if that doesn't help, the file is damaged: fetch it again.",
    )
