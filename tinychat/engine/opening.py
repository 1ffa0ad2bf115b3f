"""The part of loading that needs no torch: header, tokenizer, chat template, and what the sampler starts with.

It takes a tenth of the time that importing torch takes, so that a person can see their text fall into pieces meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tinychat import models
from tinychat.catalog import ModelCard
from tinychat.engine.defaults import sampler_defaults
from tinychat.engine.vocabulary import Vocabulary
from tinychat.errors import CheckpointError, UsageError
from tinychat.protocol import SamplerSettings
from tinychat.text.chat_template import ChatTemplate
from tinychat.text.tokenizer import Tokenizer
from tinychat.weights import Checkpoint, open_checkpoint


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint whose numbers are not read yet."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    template: ChatTemplate
    """The model's own, or the transcript of base models."""
    chat: bool
    """Whether the template is the model's own."""
    end_ids: frozenset[int]
    """Tokens that end a reply: of the tokenizer's files, config.json and generation_config.json, all together."""
    sampler: SamplerSettings
    sources: tuple[tuple[str, str], ...]
    """(setting, where its value came from)."""
    notices: tuple[str, ...]
    seconds: float
    """What opening took."""


def open_model(path: Path, card: ModelCard, flags: Iterable[tuple[str, float | int | str]] = ()) -> Opened:
    """Read everything but the weights.

    Args:
        path: A .gguf file, or a folder in Hugging Face's layout.
        card: What is known of the model beforehand.
        flags: Sampler settings the person asked for.

    Raises:
        TinychatError: A file is missing, corrupt, or of a kind tinychat doesn't run; or a flag is out of its range.
    """
    started = time.perf_counter()
    checkpoint = open_checkpoint(path)
    try:
        return _read(checkpoint, card, flags, started)
    except BaseException:
        checkpoint.close()
        raise


def _read(
    checkpoint: Checkpoint, card: ModelCard, flags: Iterable[tuple[str, float | int | str]], started: float
) -> Opened:
    path, config, generation_config = checkpoint.path, checkpoint.config, checkpoint.generation_config
    models.architecture(config, str(path))
    notices: list[str] = []
    vocabulary = Vocabulary.read(path, config if checkpoint.format == "gguf" else None)
    tokenizer, own = vocabulary.tokenizer, vocabulary.own_template(card)
    if own is None and card.format == "chat":
        notices.append(f"{card.name} has no chat template: as a base model, it continues a transcript.")
    try:
        sampler, sources, passed_over = sampler_defaults(
            flags=flags, card=card.sampler, generation_config=generation_config, metadata=config
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    end_ids = tokenizer.end_ids
    for place, values in (("config.json", config), ("generation_config.json", generation_config)):
        end_ids |= _ids(values.get("eos_token_id"), place)
    return Opened(
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        template=own or ChatTemplate.transcript(),
        chat=own is not None,
        end_ids=end_ids,
        sampler=sampler,
        sources=sources,
        notices=(*tokenizer.notices, *notices, *passed_over),
        seconds=time.perf_counter() - started,
    )


def _ids(value: object, place: str) -> frozenset[int]:
    """Return an `eos_token_id`, which is a number, a list of numbers, or absent, as a set."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(v, int) for v in values):
        raise CheckpointError(f"eos_token_id in {place} is {value!r}, which is no token id.", "Fetch the model again.")
    return frozenset(values)
