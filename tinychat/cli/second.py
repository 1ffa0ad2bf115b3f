"""`--beside`: the second model, in the words of `tinychat run`; what they don't name is as in the first."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any, Final

import typer

from tinychat.cli import options
from tinychat.cli.files import card_of
from tinychat.errors import UsageError
from tinychat.protocol import SAMPLER_FIELDS, LoadModel

_FORM: Final = ("dtype", "head", "cache_dtype", "prefill_copy", "context")


def second_model(words: str, context: typer.Context, first: LoadModel) -> LoadModel:
    """Return what loads the second model.

    Args:
        words: `MODEL OPTIONS`, each as in a shell; either may be missing.
        context: Of `tinychat run`, whose options these are.
        first: What loads the first one.

    Raises:
        UsageError: They make no sense, or name what holds for both.
    """
    try:
        arguments = shlex.split(words)
    except ValueError as error:
        raise UsageError(f"--beside {words!r} can't be read: {error}.", "Quote it as in a shell.") from None
    try:
        own = context.command.make_context("run", arguments)
    except typer.TyperException as error:
        raise UsageError(f"--beside {words!r}: {error.format_message().rstrip('.')}.") from None
    named: dict[str, Any] = {
        name: value
        for name, value in own.params.items()
        if (source := own.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }
    if "prompt" in named:
        raise UsageError(
            f"--beside {words!r} has a second word, {named['prompt']!r}, but both answer one prompt.",
            'Name a model and options: --beside "smollm2 --dtype fp32".',
        )
    allowed = {"model", "draft", *_FORM, *SAMPLER_FIELDS}
    if others := [name for name in named if name not in allowed]:
        raise UsageError(
            f"--beside {words!r}: --{others[0].replace('_', '-')} holds for both.",
            "Put it outside of the quotes.",
        )
    changes: dict[str, Any] = {name: named[name] for name in _FORM if name in named}
    if "model" in named:
        changes["card"] = card_of(named["model"])
    if "draft" in named:
        changes["draft"] = card_of(named["draft"])
        named.setdefault("speculate", options.DRAFTED)
    sampler = dict(first.sampler) | {name: named[name] for name in SAMPLER_FIELDS if name in named}
    return replace(first, sampler=tuple(sampler.items()), **changes)
