"""What a scripted engine answers where somebody looks inside: plain numbers that a test can work out by hand."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tinychat.protocol import (
    Alternative,
    Attend,
    Attended,
    BpeWalk,
    CachedBlock,
    CachedRun,
    CachedTable,
    CacheMapped,
    CacheTotals,
    Candidate,
    DescribePrompt,
    Explain,
    Explained,
    ExplainText,
    Inspect,
    KeptSequence,
    LayerStatistics,
    Lens,
    Lensed,
    LensLayer,
    MapCache,
    Merge,
    Piece,
    Probed,
    PromptDescribed,
    SamplerSettings,
    Span,
    Split,
    Spread,
    Symbol,
    TextExplained,
)

CHANCES = (0.5, 0.25, 0.125, 0.0625, 0.03125)
"""The model's own probabilities of the candidates; the rest of the vocabulary has as much as the last."""
PIECES = (b" Paris", b" Lyon", b"\x1b[2J", b"[/INST]", b"\xf0\x9f")
IDS = (5432, 17, 3, 4, 9001)
DRAW = 0.3


def explained(command: Explain, said: bool = True, now: SamplerSettings | None = None) -> Explained:
    """Answer `Explain`: a chain of temperature, top-k and top-p over five candidates; the first one was said."""
    sampler = command.sampler or now or SamplerSettings(temperature=1.0, top_k=0, top_p=0.8)
    columns: list[list[float]] = [list(CHANCES)]
    alive = [True] * len(CHANCES)
    removed = [""] * len(CHANCES)
    stages: list[str] = []
    if sampler.temperature == 0:
        stages.append("greedy")
        _keep(alive, removed, 1, "greedy")
        columns.append(_shares(list(CHANCES), alive))
    else:
        stages.append("temperature")
        weights = [chance ** (1 / sampler.temperature) for chance in CHANCES]
        columns.append(_shares(weights, alive))
        if sampler.top_k:
            stages.append("top-k")
            _keep(alive, removed, sampler.top_k, "top-k")
            columns.append(_shares(weights, alive))
        if sampler.top_p < 1:
            stages.append("top-p")
            sums = [sum(columns[-1][:index]) for index in range(len(CHANCES))]
            _keep(alive, removed, sum(total < sampler.top_p for total in sums), "top-p")
            columns.append(_shares(weights, alive))
    low = 0.0
    candidates: list[Candidate] = []
    for index, (token_id, piece) in enumerate(zip(IDS, PIECES, strict=True)):
        share = columns[-1][index]
        interval = (low, low + share) if alive[index] and sampler.temperature else None
        low += share
        chances = tuple(column[index] for column in columns)
        candidates.append(Candidate(token_id, piece, math.log(CHANCES[index]), chances, removed[index], interval))
    draw = DRAW if said and sampler.temperature else None
    chosen = IDS[0] if said else None
    return Explained(
        command.request_id, command.turn_id, command.index, chosen, sampler, tuple(stages), tuple(candidates),
        sum(alive), CHANCES[-1], draw,
    )  # fmt: skip


def probed(turn_id: int, index: int, request_id: int | None = None, layers: int = 3, heads: int = 9) -> Probed:
    """What happened in the layers at a token: the residual stream grows by 10 a layer."""
    spread = Spread(-1.5, 2.5, 0.125, 0.5)
    rows = tuple(
        LayerStatistics(10.0 * (layer + 1), spread, spread, tuple(0.25 * head for head in range(heads)), 0.11, 0.22)
        for layer in range(layers)
    )
    return Probed(turn_id, index, rows, request_id, recomputed=request_id is not None)


def inspected(command: Inspect) -> Probed:
    """Answer `Inspect`."""
    return probed(command.turn_id, command.index, command.request_id)


def lensed(command: Lens, ranks: tuple[int, ...] = (900, 3, 1, 2, 1, 1)) -> Lensed:
    """Answer `Lens`: the candidates, in another order a layer; the first of them was said and settles at layer 4."""
    layers: list[LensLayer] = []
    for rank in ranks:
        order = [*range(1, rank), 0, *range(rank, len(IDS))] if rank <= len(IDS) else [*range(1, len(IDS))]
        best = zip(order, CHANCES, strict=False)
        probability = CHANCES[rank - 1] if rank <= len(CHANCES) else 0.00001
        layers.append(LensLayer(tuple(Alternative(IDS[n], PIECES[n], chance) for n, chance in best), rank, probability))
    return Lensed(command.request_id, command.turn_id, command.index, IDS[0], tuple(layers))


def attended(command: Attend, prompt: int = 7, window: int | None = None) -> Attended:
    """Answer `Attend`: a head gives half to the first position in sight, a quarter to its own and a quarter to the one
    of its number, counted through all layers and around; 30 layers of 9 heads, three of which read one kv head."""
    length = prompt + command.index
    first = 0 if window is None else max(0, length - window)
    rows: list[list[float]] = []
    for number in range(30 * 9):
        row = [0.0] * length
        row[first] += 0.5
        row[-1] += 0.25
        row[first + number % (length - first)] += 0.25
        rows.append(row)
    start, end = (0, 30 * 9) if command.layer is None else (9 * command.layer, 9 * command.layer + 9)
    best = [max(range(start, end), key=lambda number: rows[number][position]) for position in range(length)]
    largest = tuple(divmod(number, 9) for number in best)
    if command.layer is None:
        weights = [rows[number][position] for position, number in enumerate(best)]
    elif command.head is None:
        weights = [sum(column) / 9 for column in zip(*rows[start:end], strict=True)]
    else:
        weights, largest = rows[start + command.head], ()
    return Attended(
        command.request_id, command.turn_id, command.index, command.layer, command.head, tuple(weights),
        first, window, largest, 30, 9, 3,
    )  # fmt: skip


def described(command: DescribePrompt, said: str = "What?", bos: tuple[int, ...] = (0,)) -> PromptDescribed:
    """Answer `DescribePrompt`: one turn of a person between control tokens."""
    texts = [b"<s>", b"<|im_start|>", b"user", b"\n", said.encode(), b"<|im_end|>", b"\n"]
    specials = (0, 1, 5)
    pieces: list[Piece] = []
    start = 0
    for index, data in enumerate(texts):
        pieces.append(Piece(100 + index, data, start, index in specials))
        start += len(data)
    spans = (Span(0, 4, "template", "user"), Span(4, 5, "person", "user"), Span(5, 7, "template", "user"))
    return PromptDescribed(command.request_id, command.turn_id, tuple(pieces), spans, bos)


MERGES: Final = {(b"e", b"r"): 1, (b"l", b"o"): 3, (b"lo", b"w"): 7, (b"h", b"i"): 1200}
"""Rank of each pair that was learned; what it joins to has the id 1000 more."""


def walked(data: bytes) -> Split:
    """Return how a piece of text is merged, byte by byte."""
    symbols = [bytes([byte]) for byte in data]
    begun = tuple(Symbol(each, each[0]) for each in symbols)
    merges: list[Merge] = []
    while known := [(MERGES[pair], at) for at, pair in enumerate(pairwise(symbols)) if pair in MERGES]:
        rank, at = min(known)
        merges.append(Merge(at, 1000 + rank, rank, None, tuple(MERGES.get(pair) for pair in pairwise(symbols))))
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    split = Split("merged", data, begun, tuple(merges))
    return Split("merged", data, begun, tuple(merges), tokens=split.after(len(merges)))


def explained_text(command: ExplainText) -> TextExplained:
    """Answer `ExplainText`: words with the space before them, merged as `MERGES` has it."""
    return TextExplained(command.request_id, walk_of(re.findall(r"\s?\S+|\s", command.text)))


def walk_of(words: Sequence[str]) -> BpeWalk:
    """Return the walk of a text that is cut into these words."""
    return BpeWalk(tuple(walked(word.encode("utf-8", "surrogatepass")) for word in words), 0, None, False)


def mapped(command: MapCache, tokens: int, pieces: Sequence[bytes] = ()) -> CacheMapped:
    """Answer `MapCache`: a prompt of 70 tokens, 40 of them reused, and a reply; one version is kept beside it."""
    length = 70 + tokens if tokens or pieces else 0
    runs = (
        CachedRun(0, 4, "reused", "template"),
        CachedRun(4, 12, "reused", "person", "system", 1),
        CachedRun(12, 16, "reused", "template"),
        CachedRun(16, 40, "reused", "person", "user", 2),
        CachedRun(40, 66, "computed", "person", "user", 2),
        CachedRun(66, 70, "computed", "template"),
        CachedRun(70, max(70, length - 2), "drawn", "model", "assistant", 3),
        CachedRun(max(70, length - 2), length, "accepted", "model", "assistant", 3),
    )
    count = -(-length // 32)
    blocks = tuple(CachedBlock(100 + n, 2 if n < 2 else 1, (0,) if n < 2 else ()) for n in range(count))
    names = [Piece(n, (pieces or [b" tok%d"])[n % max(1, len(pieces))].replace(b"%d", b"%d" % n), 0)
             for n in range(length)]  # fmt: skip
    first = max(0, min(command.position, length - 1) - 256)
    return CacheMapped(
        command.request_id, length, 8192, tuple(run for run in runs if run.start < run.end <= length),
        tables=(CachedTable(30, None, 0, blocks, 300),),
        kept=(KeptSequence(90, 64),) if length else (),
        token_bytes=(768,) * 30, dtype="bfloat16",
        totals=CacheTotals(400, 100, 0, 3, 41, 5, 2, 1, 2, 0),
        first_piece=first, pieces=tuple(names[first : first + 513]),
    )  # fmt: skip


def _keep(alive: list[bool], removed: list[str], count: int, stage: str) -> None:
    for index in range(len(alive)):
        if alive[index] and index >= count:
            alive[index], removed[index] = False, stage


def _shares(weights: list[float], alive: list[bool]) -> list[float]:
    total = sum(weight for weight, there in zip(weights, alive, strict=True) if there)
    return [weight / total if there else 0.0 for weight, there in zip(weights, alive, strict=True)]
