"""How fast a loaded model is, and how fast this machine's memory would let it be.

What is timed is the engine alone: prefill, and per token one forward, the choice and what `detail` reports of it. No
text is decoded and nothing crosses a thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import torch

from tinychat.engine import memory
from tinychat.engine.drafting import proposer
from tinychat.engine.generation import Prefilled, generate
from tinychat.engine.loading import Session
from tinychat.engine.speculation import Speculation
from tinychat.errors import UsageError
from tinychat.models.embedding import Embedding
from tinychat.models.paged_cache import read_bytes
from tinychat.protocol import CacheBlocks, Detail, SamplerSettings

_LARGE: Final = 2**30
"""Bytes of the buffer that is read to time the memory: more than any cache of a CPU holds."""
_READS: Final = 8
"""How often it is read; the fastest counts."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over runs. Seconds, tokens a second, bytes."""

    first_token_seconds: float
    prefill_rate: float
    decode_rate: float
    process_bytes: int
    """Resident size of the process after the runs."""
    read_rate: float
    """Bytes a second that all threads together read from memory."""
    decode_limit: float
    """Tokens a second if a token took no longer than reading what it has to read."""
    blocks: CacheBlocks
    """Of the cache when the last run ended; failures are those of all runs."""


def prompt_ids(count: int, vocabulary: int) -> list[int]:
    """Return the fixed prompt: (7919 i mod 40000) + 100 for i = 0, 1, ..., modulo the vocabulary's size."""
    return [((i * 7919) % 40000 + 100) % vocabulary for i in range(count)]


def measure(
    session: Session, *, prompt_tokens: int, new_tokens: int, runs: int, detail: Detail, speculate: int = 0
) -> Measured:
    """Measure on the engine thread. Every run is cold (empty caches) and greedy; end ids are like any other.

    Args:
        session: A loaded model; its caches are cleared.
        prompt_tokens: Length of the prompt.
        new_tokens: Tokens of a reply: 2 or more, the first one belongs to the prefill.
        runs: How many; the medians are returned.
        detail: What each token reports.
        speculate: Tokens guessed ahead, 0 for none.

    Raises:
        UsageError: They don't fit into the context.
    """
    context = session.context
    if prompt_tokens + new_tokens > context.capacity:
        raise UsageError(
            f"{prompt_tokens} prompt tokens and {new_tokens} new ones are more than the context of {session.info.name} "
            f"holds, {context.capacity:,}.",
            "Lower --prompt-tokens or --new-tokens.",
        )
    prompt = prompt_ids(prompt_tokens, session.info.vocabulary_size)
    greedy = SamplerSettings(temperature=0.0, speculate=speculate)
    _run(session, prompt[:1], 2, detail, greedy)  # what a process does once, no chat waits for
    failures = context.blocks.failures
    timed = [_run(session, prompt, new_tokens, detail, greedy) for _ in range(runs)]
    blocks = context.blocks
    context.clear()
    process_bytes = memory.process()
    rate = read_rate()
    return Measured(
        first_token_seconds=median(first for first, _, _ in timed),
        prefill_rate=median(prompt_tokens / prefill for _, prefill, _ in timed),
        decode_rate=median((new_tokens - 1) / decode for _, _, decode in timed),
        process_bytes=process_bytes,
        read_rate=rate,
        decode_limit=rate / bytes_per_token(session, prompt_tokens + new_tokens / 2),
        blocks=replace(blocks, failures=blocks.failures - failures),
    )


def bytes_per_token(session: Session, cached_tokens: float) -> float:
    """Return the bytes a decode step reads: all weights, of embeddings only a row, and the caches' tokens.

    A copy for prompts it doesn't read.
    """
    context = session.context
    looked_up = sum(part.nbytes for part in vars(context.model).values() if isinstance(part, Embedding))
    return (
        session.info.weights_bytes
        - session.info.copy_bytes
        - looked_up
        + read_bytes(context.model.attention, round(cached_tokens), context.caches[0].dtype)
    )


def _run(
    session: Session, prompt: list[int], new_tokens: int, detail: Detail, settings: SamplerSettings
) -> tuple[float, float, float]:
    """Return the seconds to the first token, of the prefill, and from the first token to the last."""
    session.context.clear()
    if session.draft is not None:
        session.draft.clear()
    started = prefilled = time.perf_counter()
    chosen: list[float] = []
    speculation = Speculation(proposer(session))
    for step in generate(session.context, prompt, settings, seed=0, detail=detail, speculation=speculation):
        if isinstance(step, Prefilled):
            prefilled = time.perf_counter()
            continue
        chosen.append(time.perf_counter())
        if len(chosen) == new_tokens:
            break
    return chosen[0] - started, prefilled - started, chosen[-1] - chosen[0]


def read_rate(size: int = _LARGE, reads: int = _READS) -> float:
    """Return bytes a second: the best of `reads` sums over a buffer of `size` bytes, too large for any cache."""
    size = min(size, memory.available() // 4)
    buffer = torch.ones(size // 4)
    best = float("inf")
    for _ in range(reads):
        started = time.perf_counter()
        buffer.sum()
        best = min(best, time.perf_counter() - started)
    return buffer.nbytes / best
