"""The map of the cache is the cache: held to what the events of each turn said, and to the tables of blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from driven import Driven, driven
from rulers import build
from tiny import Tiny

from tinychat.engine import generation
from tinychat.engine.cache_map import AROUND
from tinychat.models.paged import BLOCK
from tinychat.protocol import (
    CacheMapped,
    Cancel,
    EngineFailed,
    MapCache,
    Message,
    Pace,
    Paused,
    PrefillProgress,
    PromptRendered,
    SamplerSettings,
    TokenEmitted,
    TurnFinished,
)

WORDS = ["what", "is", "the", "capital", "of", "France", "and", "what", "is", "it", "not", "again"]


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 8)


def mapped(engine: Driven, position: int = 0) -> CacheMapped:
    number = 1 + len(engine.of(CacheMapped))
    engine.send(MapCache(number, position))
    return engine.wait(CacheMapped, request_id=number)


def truth(engine: Driven) -> dict[str, Any]:
    """Return what the context itself holds, read off its parts one by one."""

    def read(session) -> dict[str, Any]:
        context = session.context
        sequences = [*(caches for _, caches in context._kept), context.sequence]
        tables = []
        for number, table in enumerate(context.sequence.tables):
            named = [
                [int(each.tables[number].blocks[place]) for place in range(each.tables[number].first,
                                                                           each.tables[number].end)]
                for each in sequences
            ]  # fmt: skip
            tables.append((table.first, table.end, named, list(table.pool.references), table.pool.free))
        return {
            "ids": list(context.ids), "kept": [list(ids) for ids, _ in context._kept], "tables": tables,
            "arrivals": len(context.arrivals), "nbytes": context.nbytes,
            "failures": sum(pool.failures for pool in context.sequence.pools),
        }  # fmt: skip

    return engine.engine.call(read)


def spread_out(answer: CacheMapped) -> list[tuple[str, str, str]]:
    """Return (arrival, origin, role) of each position."""
    assert [run.start for run in answer.runs] == [0, *(run.end for run in answer.runs[:-1])][: len(answer.runs)]
    assert all(run.start < run.end for run in answer.runs)
    return [(run.arrival, run.origin, run.role) for run in answer.runs for _ in range(run.start, run.end)]


def expected(engine: Driven, turn_id: int, length: int) -> list[tuple[str, str, str]]:
    """Return the same from the events of a turn."""
    prompt = engine.of(PromptRendered, turn_id=turn_id)[-1]
    progress = engine.of(PrefillProgress, turn_id=turn_id)[-1]
    tokens = engine.of(TokenEmitted, turn_id=turn_id)
    sources = [(span.origin, span.role) for span in prompt.spans for _ in range(span.start, span.end)]
    found = []
    for position in range(length):
        source = sources[position] if position < len(sources) else ("model", "assistant")
        if position < progress.total:
            arrival = "reused" if position < progress.reused else "computed"
        else:
            arrival = "accepted" if tokens[position - len(sources)].accepted else "drawn"
        found.append((arrival, *source))
    return found


def hold_to(answer: CacheMapped, held: dict[str, Any]) -> None:
    """Hold blocks, sharers and kept sequences to the context's own."""
    assert answer.length == len(held["ids"]) == held["arrivals"] == sum(run.end - run.start for run in answer.runs)
    assert [piece.token_id for piece in answer.pieces] == held["ids"][answer.first_piece :][: len(answer.pieces)]
    assert [kept.length for kept in answer.kept] == [len(ids) for ids in held["kept"]]
    for kept, ids in zip(answer.kept, held["kept"], strict=True):
        assert ids[: kept.common] == held["ids"][: kept.common]
        assert (
            ids[kept.common : kept.common + 1] != held["ids"][kept.common : kept.common + 1] or not ids[kept.common :]
        )
    for table, (first, end, named, references, free) in zip(answer.tables, held["tables"], strict=True):
        assert (table.first, len(table.blocks), table.free) == (first, end - first, free)
        assert len(references) - free == len({block for blocks in named for block in blocks})
        for block in table.blocks:
            assert block.references == sum(block.number in blocks for blocks in named) == references[block.number]
            assert block.sharers == tuple(n for n, blocks in enumerate(named[:-1]) if block.number in blocks)
        assert first * BLOCK <= answer.length <= end * BLOCK


@pytest.mark.parametrize(
    ("variant", "form", "seed"),
    [("llama", "auto", 1), ("llama", "int8", 2), ("llama", "auto", 3), ("qwen3-window", "auto", 4)],
)
def test_a_walk_through_a_chat(tiny: Tiny, engine, variant, form, seed):
    """Questions, regenerations, edits, branches and replies that are stopped, in any order, with guesses or without:
    each time every position, block and sharer is what events and tables say, and the sums are those of the turns.

    Would catch: a mark that stays behind a trim or a kept sequence that is taken up again, a guess told as drawn, a
    block whose sharers are those of another place, a total that counts twice."""
    draw = random.Random(seed)
    engine.load(tiny.safetensors(variant).path, cache_dtype=form)
    history: list[Message] = [Message("user", " ".join(WORDS))]
    seen = reused = 0
    made: dict[int, list[int]] = {}
    for turn_id in range(1, 15):
        forced: tuple[int, ...] = ()
        long = turn_id > 1 and len(engine.of(PromptRendered)[-1].ids) > 130
        match "edit" if long else draw.choice(["ask", "ask", "again", "edit", "branch"]):
            case "ask":
                history.append(Message("user", " ".join(draw.sample(WORDS, 4))))
            case "edit":
                history = [
                    *history[: draw.randrange(min(len(history), 3))],
                    Message("user", " ".join(draw.sample(WORDS, 3))),
                ]
            case "branch" if made:
                forced = (*made[max(made)][: draw.randrange(5)], draw.randrange(3, 300))
        sampler = SamplerSettings(temperature=draw.choice([0.0, 1.0]), seed=turn_id, speculate=draw.choice([0, 4]))
        limit = draw.randrange(len(forced) + 1, 24)
        more = {"messages": tuple(history), "sampler": sampler, "forced_ids": forced, "pace": Pace("pause")}
        engine.say(turn_id=turn_id, count=limit, **more)
        paused = engine.wait(Paused, turn_id=turn_id).index
        for index in range(paused, min(limit, paused + 3)):
            engine.wait(Paused, turn_id=turn_id, index=index)
            answer = mapped(engine)
            # What waits is computed as far as the token before it, and perhaps some guesses.
            certain = len(engine.of(PromptRendered, turn_id=turn_id)[0].ids) + index
            assert spread_out(answer)[:certain] == expected(engine, turn_id, certain)
            assert {arrival for arrival, _, _ in spread_out(answer)[certain:]} <= {"guessed"}
            engine.send(Pace("step"))
        if draw.random() < 0.2:
            engine.send(Cancel(turn_id=turn_id))
        engine.send(Pace("play"))
        done = engine.wait(TurnFinished, turn_id=turn_id)
        made[turn_id] = engine.tokens(turn_id)
        history.append(Message("assistant", done.text, ids=done.ids, vocabulary=""))
        answer, held = mapped(engine), truth(engine)
        hold_to(answer, held)
        assert spread_out(answer) == expected(engine, turn_id, answer.length)
        seen += done.prompt_tokens + done.forced
        reused += done.reused_tokens
        totals = answer.totals
        assert (totals.reused, totals.reused + totals.computed) == (reused, seen)
        assert (totals.recomputed, totals.failures) == (0, held["failures"])
        assert totals.hit_rate == reused / seen
        if len(held["tables"]) == 1:
            assert sum(answer.token_bytes) * answer.block * len(held["tables"][0][3]) == held["nbytes"]
    assert not engine.of(EngineFailed)
    assert answer.dtype == ("int8" if form == "int8" else "float32")
    assert totals.trims
    assert totals.forks
    assert answer.kept
    assert any(told.kept and any(block.sharers for table in told.tables for block in table.blocks)
               for told in engine.of(CacheMapped))  # fmt: skip


@torch.inference_mode()
def test_counting_is_by_hand(tiny: Tiny):
    """Would catch: a trim, a copy, a return that is not counted, on a sequence short enough to follow."""
    context = build(tiny.safetensors("llama").path).context()
    ids = list(range(3, 43))

    def read(prompt: list[int]) -> None:
        held = context.reuse(prompt)
        context.forward(prompt[held:])

    read(ids)
    assert bytes(context.arrivals) == b"c" * 40
    context.forward([50])
    context.verify([51, 52, 53])
    assert bytes(context.arrivals) == b"c" * 40 + b"ddgg"
    context.trim(43)
    read([*ids[:36], 60, 61])  # parts inside the second block, which is copied
    assert bytes(context.arrivals) == b"r" * 36 + b"cc"
    read([*ids, 50, 51, 52, 70])  # goes on where the kept one left off
    assert bytes(context.arrivals) == b"r" * 43 + b"c"
    counts = context.counts
    assert (counts.reused, counts.computed) == (36 + 43, 40 + 2 + 1)
    assert (counts.refused, counts.trims, counts.trimmed) == (1, 1, 7)
    assert (counts.forks, counts.returns, context.sequence.pools[0].copies) == (1, 1, 1)


def test_a_window_lets_go(tiny: Tiny, engine):
    """Would catch: a map that begins at position 0 where the window's layers begin later, a table that is missing."""
    engine.load(tiny.safetensors("qwen3-window").path)
    engine.reply(" ".join(WORDS * 3), count=100)
    answer = mapped(engine)
    hold_to(answer, truth(engine))
    assert [(table.window is None, table.first > 0) for table in answer.tables] in ([(0, 1), (1, 0)], [(1, 0), (0, 1)])
    assert sum(table.layers for table in answer.tables) == len(answer.token_bytes)


def test_names_of_tokens_are_those_around_the_place(tiny: Tiny, engine, monkeypatch):
    """Would catch: a name told of another position than its own, or a long prompt sent whole twice a second."""
    monkeypatch.setattr("tinychat.engine.cache_map.AROUND", 4)
    assert AROUND > 4
    engine.load(tiny.safetensors("llama").path)
    engine.reply("What is the capital of France?", count=3)
    ids = truth(engine)["ids"]
    for position, first in ((0, 0), (4, 0), (9, 5), (10**6, len(ids) - 5)):
        answer = mapped(engine, position)
        assert answer.first_piece == first
        assert [piece.token_id for piece in answer.pieces] == ids[first : first + 9]


def test_before_a_model_before_a_turn_and_after_what_was_kept_is_gone(tiny: Tiny, engine):
    """A sentence, an empty map, and positions of unknown origin: no failure."""
    assert "no caches" in mapped(engine).problem
    engine.load(tiny.safetensors("llama").path)
    answer = mapped(engine)
    assert (answer.problem, answer.length, answer.runs, answer.pieces) == ("", 0, (), ())
    engine.reply(count=4)
    engine.engine.call(lambda session: session.records._turns.clear())
    answer = mapped(engine)
    assert {run.origin for run in answer.runs} == {"unknown"}
    assert [run.arrival for run in answer.runs] == ["computed", "drawn"]
    assert not engine.of(EngineFailed)


def test_messages_are_numbered(tiny: Tiny, engine):
    """Would catch: the template counted as a turn, and a reply under the number of its question."""
    engine.load(tiny.safetensors("llama").path)
    said = Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes"), Message("user", "So?")
    engine.reply(messages=said, count=4)
    numbers = {}
    for run in mapped(engine).runs:
        numbers.setdefault(run.message, (run.origin, run.role))
    assert numbers.pop(0)[0] == "template"
    assert [(number, role) for number, (_, role) in sorted(numbers.items())] == [
        (1, "system"), (2, "user"), (3, "assistant"), (4, "user"), (5, "assistant"),
    ]  # fmt: skip
