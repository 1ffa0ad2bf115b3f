"""A recording, made again by its model: equal, or where it is not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import typer

from tinychat.catalog import FileSource
from tinychat.cli.console import Notices, Results
from tinychat.cli.files import card_of
from tinychat.cli.headless import Headless
from tinychat.cli.replay import first_load
from tinychat.engine.beneath import other_model
from tinychat.engine.recorded import Recording
from tinychat.errors import TinychatError
from tinychat.protocol import LoadModel, ModelReady


def check_replies(recording: Recording, model: str | None) -> None:
    """Print for each reply where it differs, or that none does.

    Args:
        recording: The chat.
        model: What the person calls the model; None: as the recording calls it, if it is on this machine.

    Raises:
        TinychatError: The model can't be loaded, or has another vocabulary.
        typer.Exit: A reply differs.
    """
    from tinychat.engine.rerun import Difference, replies, rerun

    results, notices = Results(), Notices()
    recorded = replies(recording.entries)
    if recording.problem:
        notices.line(f"note: {recording.problem}")
    ready = recorded_models(recording)
    if not any(reply.tokens for reply in recorded) or not ready:
        raise TinychatError(f"{recording.path} holds no reply that could be made again.")
    if len({each.info.fingerprint for each in ready}) > 1:
        raise TinychatError(f"{recording.path} was made with several models; only one can be checked.")
    with Headless() as headless:
        now = headless.load(load_again(recording, model))
        if now.info.vocabulary != ready[0].info.vocabulary:
            raise TinychatError(
                f"The recording was made with {ready[0].info.name}; {now.info.name} has another vocabulary.",
                "Name the model of the recording with --model.",
            )
        if note := other_model(ready[0], now):
            notices.line(f"note: {note}")
        differences = 0
        for number, reply in enumerate(recorded, 1):
            notices.status(f"reply {number} of {len(recorded)}")
            difference: Difference | None = headless.engine.call(partial(rerun, recorded=reply))
            notices.clear()
            if difference is not None:
                differences += 1
                results.line(f"reply {number} differs at {difference.where}. {difference.what}")
    tokens = sum(len(reply.tokens) for reply in recorded)
    counted = f"{len(recorded):,} {'reply' if len(recorded) == 1 else 'replies'}"
    of_tokens = f"{tokens:,} {'token' if tokens == 1 else 'tokens'}"
    if not differences:
        results.line(f"equal: {of_tokens} in {counted}")
        return
    results.line(f"different: {differences:,} of {counted}, {of_tokens} in all")
    raise typer.Exit(1)


def load_again(recording: Recording, model: str | None) -> LoadModel:
    """Return the command that loads the model as it was loaded then.

    A recording may come from anybody: what it names is loaded where it is here already, and never fetched.

    Raises:
        TinychatError: It isn't here, or goes by no name.
    """
    from tinychat import hub

    then = first_load(recording)
    if model is None and isinstance(then.card.source, FileSource):
        raise TinychatError(
            f"The recording was made with a file of the name {then.card.name}.", "`--model PATH` says where it is."
        )
    card = card_of(then.card.name if model is None else model)
    if model is None and hub.located(card, True) is None:
        raise TinychatError(
            f"The recording was made with {card.name}, which isn't on this machine.",
            f"`tinychat pull {card.name}` fetches it.",
        )
    models = recorded_models(recording)
    context = models[0].info.context if models else then.context
    return replace(then, load_id=1, card=card, draft=None, context=context)


def recorded_models(recording: Recording) -> list[ModelReady]:
    """Return the models that were loaded."""
    return [entry.said for entry in recording.entries if isinstance(entry.said, ModelReady)]
