"""Answers to what a person asks about a token or a prompt, from what was kept, or by running the model once more."""

from __future__ import annotations

import torch

from tinychat.engine.chain import History
from tinychat.engine.generation import Waiting
from tinychat.engine.layer_statistics import LayerProbe
from tinychat.engine.loading import Session
from tinychat.engine.records import TurnRecord
from tinychat.engine.stage_table import stage_table
from tinychat.errors import TinychatError
from tinychat.protocol import (
    Candidate,
    DescribePrompt,
    Explain,
    Explained,
    Piece,
    Probed,
    PromptDescribed,
    SamplerSettings,
)

_FORGOTTEN = "What was kept of this turn is gone: only the newest turns since the model was loaded are there."


@torch.inference_mode()
def explain(
    session: Session, command: Explain, now: SamplerSettings | None = None, ahead: Waiting | None = None
) -> Explained:
    """Answer `Explain`.

    Args:
        session: The model, its caches and records.
        command: What is asked.
        now: Where the turn that is asked about is being made: the settings its next token will be chosen by.
        ahead: Likewise, that token, if it waits.
    """
    turn = session.records.get(command.turn_id)

    def refused(why: str) -> Explained:
        return Explained(command.request_id, command.turn_id, command.index, problem=why)

    if turn is None:
        return refused(_FORGOTTEN)
    index = command.index
    if problem := _outside(turn, index):
        return refused(problem)
    token = turn.tokens[index] if index < len(turn.tokens) else None
    settings = command.sampler or _in_force(turn, index, now) or session.sampler
    draw = None if token is None else token.draw
    states, row = (None, 0) if token is None else (token.states, token.row)
    if token is None and ahead is not None and ahead.index == index:
        states, row, draw = ahead.states, ahead.row, ahead.draw
    recomputed = states is None
    model = session.context.model
    try:
        if states is None:
            states, row = session.context.look([*turn.prompt.ids, *turn.ids[:index]]), 0
        history = History(turn.prompt.ids, model.config.vocab_size, turn.ids[:index])
        also = () if token is None else (token.token_id,)
        table = stage_table(model.logits(states)[row], settings, history, model.kernels, also=also)
    except TinychatError as error:
        return refused(error.summary)
    bytes_of = session.opened.tokenizer.bytes_of
    return Explained(
        command.request_id,
        command.turn_id,
        index,
        chosen=None if token is None else token.token_id,
        sampler=settings,
        stages=table.stages,
        candidates=tuple(
            Candidate(
                each.token_id,
                bytes_of(each.token_id),
                each.logit,
                each.probabilities,
                each.removed_by,
                each.interval,
            )
            for each in table.rows
        ),
        survivors=table.survivors,
        rest=table.rest,
        draw=None if "greedy" in table.stages else draw,
        forced=token is not None and token.forced,
        recomputed=recomputed,
    )


@torch.inference_mode()
def inspect(session: Session, turn_id: int, index: int, request_id: int | None = None) -> Probed:
    """Run the model once more at the place that decided a token, with open taps."""
    probe = LayerProbe(session.info.layers, 1)
    try:
        session.context.look(ids_before(session, turn_id, index), probe)
    except TinychatError as error:
        return Probed(turn_id, index, request_id=request_id, problem=error.summary)
    return Probed(turn_id, index, probe.statistics(0), request_id, recomputed=True)


def ids_before(session: Session, turn_id: int, index: int) -> list[int]:
    """Return all ids that came before a token of a turn, or before the one that would be next.

    Raises:
        TinychatError: There is no such turn any more, or no such token.
    """
    turn = session.records.get(turn_id)
    if turn is None:
        raise TinychatError(_FORGOTTEN)
    if problem := _outside(turn, index):
        raise TinychatError(problem)
    return [*turn.prompt.ids, *turn.ids[:index]]


def id_of(session: Session, turn_id: int, index: int) -> int | None:
    """Return the id of a token that was said, None where none was yet."""
    turn = session.records.get(turn_id)
    return turn.tokens[index].token_id if turn is not None and index < len(turn.tokens) else None


def _outside(turn: TurnRecord, index: int) -> str:
    """Return what is wrong with the number of a token, "" where it is one, or that of the next."""
    if 0 <= index <= len(turn.tokens):
        return ""
    return f"The reply has {len(turn.tokens):,} tokens; there is none of number {index + 1:,}."


def _in_force(turn: TurnRecord, index: int, now: SamplerSettings | None) -> SamplerSettings | None:
    """Return the settings of a token; of the one after a reply's last, those that it ended with."""
    if index < len(turn.tokens):
        return turn.tokens[index].settings
    return now or (turn.tokens[-1].settings if turn.tokens else None)


def describe_prompt(session: Session, command: DescribePrompt) -> PromptDescribed:
    """Answer `DescribePrompt`."""
    turn = session.records.get(command.turn_id)
    if turn is None:
        return PromptDescribed(command.request_id, command.turn_id, problem=_FORGOTTEN)
    tokenizer = session.opened.tokenizer
    pieces: list[Piece] = []
    start = 0
    for token_id in turn.prompt.ids:
        data = tokenizer.bytes_of(token_id)
        pieces.append(Piece(token_id, data, start, special=token_id in tokenizer.special))
        start += len(data)
    bos = next((n for n, token_id in enumerate(turn.prompt.ids) if token_id != tokenizer.bos_id), len(pieces))
    return PromptDescribed(command.request_id, command.turn_id, tuple(pieces), turn.prompt.spans, bos=tuple(range(bos)))
