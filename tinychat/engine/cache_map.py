"""The map of the cache: each position of the growing sequence, where it came from, and the blocks it lies in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from tinychat.engine.arrivals import GUESSED, NAMES
from tinychat.engine.context import Context
from tinychat.engine.loading import Session
from tinychat.engine.records import TurnRecord
from tinychat.models.paged import BLOCK, BlockTable
from tinychat.protocol import (
    Arrival,
    CachedBlock,
    CachedRun,
    CachedTable,
    CacheMapped,
    CacheTotals,
    KeptSequence,
    MapCache,
    Piece,
    Span,
)

AROUND: Final = 256
"""Tokens before and after the position asked about that are told by name: all of a long context would be too many to
send twice a second."""
_RUN: Final = re.compile(rb"(.)\1*", re.DOTALL)


def map_cache(session: Session, command: MapCache) -> CacheMapped:
    """Answer `MapCache`."""
    context, tokenizer = session.context, session.opened.tokenizer
    ids = context.ids
    first = max(0, min(command.position, len(ids) - 1) - AROUND)
    pieces = (
        Piece(token_id, tokenizer.bytes_of(token_id), 0, special=token_id in tokenizer.special)
        for token_id in ids[first : first + 2 * AROUND + 1]
    )
    pools = context.sequence.pools
    return CacheMapped(
        command.request_id,
        len(ids),
        context.capacity,
        tuple(_runs(context, _record_of(context, session.records.newest_first))),
        BLOCK,
        tuple(_table(context, number) for number in range(len(pools))),
        tuple(KeptSequence(len(kept), _common(kept, ids)) for kept, _ in context.kept),
        tuple(cache.nbytes // (cache.table.pool.blocks * BLOCK) for cache in context.caches),
        str(context.caches[0].dtype).removeprefix("torch."),
        CacheTotals(
            **asdict(context.counts),
            copies=sum(pool.copies for pool in pools),
            failures=sum(pool.failures for pool in pools),
        ),
        first,
        tuple(pieces),
    )


def _record_of(context: Context, turns: Sequence[TurnRecord]) -> TurnRecord | None:
    """Return the newest turn whose tokens the caches hold, as far as both go: one that has just begun may not be in
    them yet. Guesses at the end may be wrong ones."""
    sure = len(context.arrivals.rstrip(GUESSED))
    for turn in turns:
        known = [*turn.prompt.ids, *turn.ids]
        if _common(known, context.ids) >= min(sure, len(known)):
            return turn
    return None


def _runs(context: Context, turn: TurnRecord | None) -> Iterator[CachedRun]:
    """Yield the runs of positions: cut where the origin changes, and where the arrival does."""
    length, held = len(context.ids), bytes(context.arrivals)
    spans: list[tuple[Span | None, int]] = [(None, 0)]
    ends = [length]
    said = 0
    if turn is not None:
        prompt = len(turn.prompt.ids)
        said = _common([*turn.prompt.ids, *turn.ids], context.ids)
        spans = _numbered([*turn.prompt.spans, Span(prompt, max(prompt, length), "model", "assistant")])
        ends = [span.end for span, _ in spans if span is not None]
    start = 0
    for (span, message), end in zip(spans, ends, strict=True):
        for run in _RUN.finditer(held, start, max(start, min(end, length))):
            for low, high, arrival in _judged(run, said):
                if span is None:
                    yield CachedRun(low, high, arrival)
                else:
                    yield CachedRun(low, high, arrival, span.origin, span.role, message)
        start = max(start, end)


def _judged(run: re.Match[bytes], said: int) -> Iterator[tuple[int, int, Arrival]]:
    """Yield a run of equal arrivals, cut where it comes to guesses that are not said, or not said yet."""
    low, high = run.span()
    if run[1] != GUESSED:
        yield low, high, NAMES[run[1][0]]
        return
    if low < said:
        yield low, min(said, high), "accepted"
    if high > said:
        yield max(low, said), high, "guessed"


def _numbered(spans: Sequence[Span]) -> list[tuple[Span | None, int]]:
    """Return the spans, each with the number of its message: whose role is another than that of the one before it.

    The template's have none. Of a thinking model's message, thinking and answer are two contents and one message.
    """
    found: list[tuple[Span | None, int]] = []
    message, role = 0, ""
    for span in spans:
        if span.origin != "template" and span.role != role:
            message, role = message + 1, span.role
        found.append((span, 0 if span.origin == "template" else message))
    return found


def _table(context: Context, number: int) -> CachedTable:
    """Return the blocks of one table, and who else names them."""
    table = context.sequence.tables[number]
    others = [_places(caches.tables[number]) for _, caches in context.kept]
    references = table.pool.references
    blocks = tuple(
        CachedBlock(block, references[block], tuple(n for n, other in enumerate(others) if other.get(place) == block))
        for place, block in _places(table).items()
    )
    layers = sum(cache.table is table for cache in context.caches)
    return CachedTable(layers, table.pool.window, table.first, blocks, table.pool.free)


def _places(table: BlockTable) -> dict[int, int]:
    """Return place in the sequence, in blocks -> place in the pool."""
    return dict(zip(range(table.first, table.end), table.blocks[table.first : table.end].tolist(), strict=True))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids both begin with."""
    most = min(len(one), len(other))
    return next((n for n in range(most) if one[n] != other[n]), most)
