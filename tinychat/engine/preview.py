"""What a checkpoint would be once loaded, from its headers alone: sizes in every form, and whether it fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from tinychat.engine import memory
from tinychat.engine.loading import architecture
from tinychat.engine.loss_store import recall
from tinychat.engine.opening import Opened
from tinychat.engine.prefill_copy import PrefillCopy, choose
from tinychat.errors import OutOfMemory
from tinychat.models.linear import abilities
from tinychat.models.paged_cache import cache_bytes
from tinychat.models.policy import DTYPES, Policy
from tinychat.protocol import QuantisationLoss

_CONTEXTS: Final = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass(frozen=True, slots=True)
class Preview:
    """A checkpoint that was looked at and not loaded. Sizes in bytes."""

    architecture: str
    """The family, as its users spell it."""
    parameters: int
    """A tied head counts once."""
    context: int
    """Tokens the model was made for."""
    vocabulary: int
    """Number of tokens."""
    template: str | None
    """The model's own chat template; None for a base model."""
    sampler: tuple[tuple[str, float | int | str | None, str], ...]
    """(setting, value, where it comes from)."""
    tensors: dict[str, tuple[int, int]]
    """Type in the files -> (tensors, bytes)."""
    becomes: dict[str, tuple[str, ...]]
    """The same types -> what tensors of it become under `auto`: fp32, bf16, int8, int4; nothing where none is used."""
    weights_bytes: dict[str, int]
    """--dtype -> resident size, without a copy for prompts."""
    copy: PrefillCopy
    """Whether `auto` would keep one now."""
    cache_bytes: dict[int, int]
    """Tokens -> size of all caches, under `auto`."""
    losses: dict[str, QuantisationLoss]
    """What was measured before: form in memory, as `ModelInfo.dtype_reason` has it -> its loss."""
    fits: bool
    """Whether `auto` and its default context fit into what is free now."""
    notices: tuple[str, ...]


def preview(opened: Opened) -> Preview:
    """Plan the load of a checkpoint in every form, without reading a weight.

    Raises:
        TinychatError: It can't be loaded; the sentence says why.
    """
    found = architecture(opened)
    can = abilities()
    walks = {dtype: found.walk(Policy(dtype, can)) for dtype in DTYPES}
    plans = {dtype: report for dtype, (_, report) in walks.items()}
    attention = walks["auto"][0].attention
    auto, positions = plans["auto"], found.config.positions
    free = memory.available()
    _, copy = choose("auto", found, Policy("auto", can), free)
    fp32 = all(form == "fp32" for _, form in auto.forms["layers"])

    def size_of(tokens: int) -> int:
        return cache_bytes(attention, tokens, torch.float32 if fp32 else torch.bfloat16)

    tensors: dict[str, tuple[int, int]] = {}
    for stored in opened.checkpoint.tensors.values():
        count, size = tensors.get(stored.type, (0, 0))
        tensors[stored.type] = (count + 1, size + stored.nbytes)
    sizes = sorted({*(tokens for tokens in _CONTEXTS if tokens < positions), positions})
    return Preview(
        architecture=found.file.FAMILY,
        parameters=auto.parameters,
        context=positions,
        vocabulary=opened.tokenizer.size,
        template=opened.template.source if opened.chat else None,
        sampler=tuple((name, getattr(opened.sampler, name), source) for name, source in opened.sources),
        tensors=tensors,
        becomes={kind: tuple(auto.became.get(kind, ())) for kind in tensors},
        weights_bytes={dtype: plan.nbytes for dtype, plan in plans.items()},
        copy=copy,
        cache_bytes={tokens: size_of(tokens) for tokens in sizes},
        losses=recall(opened.checkpoint.weight_files),
        fits=_fits(positions, auto.nbytes + (copy.nbytes if copy.kept else 0), size_of, free),
        notices=(*opened.notices, *auto.notices),
    )


def _fits(positions: int, weights: int, size_of: Callable[[int], int], free: int) -> bool:
    try:
        memory.fit_context(
            asked=None,
            positions=positions,
            weights=weights,
            cache_bytes=size_of,
            free=free,
            name="",
        )
    except OutOfMemory:
        return False
    return True
