"""From an opened checkpoint to a model that can be talked to. Runs on the engine thread, where torch lives."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import psutil
import torch

from tinychat import models
from tinychat.engine import memory, prefill_copy
from tinychat.engine.context import Context
from tinychat.engine.loss_store import fingerprint, recall
from tinychat.engine.opening import Opened
from tinychat.engine.records import Records
from tinychat.errors import CheckpointError, UsageError
from tinychat.kernels import Kernels, plain
from tinychat.models.base import Report, Weights, rename
from tinychat.models.blocks import GROUP
from tinychat.models.cache import AttentionSpec
from tinychat.models.linear import Abilities, abilities
from tinychat.models.paged_cache import cache_bytes
from tinychat.models.policy import DTYPES, HEADS, Policy, StoredTensor, codes_stay
from tinychat.protocol import LoadModel, ModelInfo, SamplerSettings

if TYPE_CHECKING:
    from tinychat.engine.attention_patterns import Patterns
    from tinychat.engine.drafting import DraftPlan

CACHE_DTYPES: Final = ("auto", "int8")
LEAST_ASKED: Final = 16
"""Fewest tokens a context may be asked to hold."""
BASE_MAX_TOKENS: Final = 256
"""Limit of a base model's reply where the person sets none: it never ends by itself."""

Progress = Callable[[str, float], None]
"""(what is being done, fraction of the whole load); what it raises ends the load."""


@dataclass(slots=True)
class Session:
    """A loaded model, its caches, and what came with it."""

    opened: Opened
    context: Context
    info: ModelInfo
    sampler: SamplerSettings
    sources: tuple[tuple[str, str], ...]
    draft: Context | None = None
    """The caches of a smaller model of the same vocabulary, which guesses ahead."""
    draft_bytes: int = 0
    """Bytes resident for its weights."""
    records: Records = field(default_factory=Records)
    """What is kept of the turns."""
    patterns: Patterns | None = None
    """The weights of attention at the token asked about last."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of both."""
        return self.records.nbytes + (self.patterns.nbytes if self.patterns else 0)

    @property
    def weights_bytes(self) -> int:
        """Bytes resident for weights, those of the draft model counted too."""
        return self.info.weights_bytes + self.draft_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of caches that hold tokens, likewise."""
        return self.context.used_bytes + (self.draft.used_bytes if self.draft else 0)

    @property
    def reserved_bytes(self) -> int:
        """Bytes reserved for caches, likewise."""
        return self.context.nbytes + (self.draft.nbytes if self.draft else 0)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A checkpoint under an architecture's own names: what is known before any weight is read."""

    file: Any
    """Its file of `models/`."""
    config: Any
    tensors: Mapping[str, StoredTensor]
    source: str
    gguf: bool

    def walk(
        self, policy: Policy, kernels: Kernels = plain, progress: Callable[[Weights], None] | None = None
    ) -> tuple[Any, Report]:
        """Build the model, or with no `progress` only plan it; return it and what was found.

        Raises:
            CheckpointError: Parameters are missing, misshapen, left over or not finite.
        """
        weights = Weights(
            self.tensors,
            policy,
            source=self.source,
            gguf=self.gguf,
            dry=progress is None,
            progress=None if progress is None else lambda: progress(weights),
        )
        model = self.file.Model(self.config, weights, kernels)
        return model, weights.check()


def architecture(opened: Opened) -> Architecture:
    """Find the file of the checkpoint's architecture and read its numbers.

    Raises:
        UnsupportedModel: tinychat doesn't run it.
        CheckpointError: A number is missing, or the numbers make no model.
    """
    checkpoint = opened.checkpoint
    source, gguf = str(checkpoint.path), checkpoint.format == "gguf"
    file = models.find(models.architecture(checkpoint.config, source))
    try:
        if gguf:
            config = file.Config.from_gguf(checkpoint.config, list(checkpoint.tensors), source)
        else:
            config = file.Config.from_json(checkpoint.config, source)
    except KeyError as error:
        raise CheckpointError(f"{source} doesn't say {error.args[0]}.", "Fetch the model again.") from error
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise CheckpointError(f"The config of {source} makes no model: {error}.", "Fetch the model again.") from error
    tensors = rename(checkpoint.tensors, file.names(gguf=gguf), source)
    for stored in tensors.values():
        stored.require_weights()
    return Architecture(file, config, tensors, source, gguf)


def load(
    opened: Opened,
    command: LoadModel,
    kernels: Kernels,
    progress: Progress,
    notices: tuple[str, ...] = (),
    draft: DraftPlan | None = None,
) -> Session:
    """Judge whether the model fits, then build it and run it once.

    Args:
        opened: Header, tokenizer and template.
        command: What was asked for.
        kernels: The primitives.
        progress: Told as the load goes on.
        notices: What there is to say about the load already.
        draft: A second model that has to fit beside it; it is not built here.

    Raises:
        TinychatError: It can't be loaded; the sentence says why.
    """
    started = time.perf_counter()
    threads = command.threads or usable_cores()
    torch.set_num_threads(threads)
    found = architecture(opened)
    can = abilities()
    free = memory.available()
    policy, copy = prefill_copy.choose(command.prefill_copy, found, policy_of(command, can), free)
    outline, planned = found.walk(policy)
    if opened.tokenizer.size > found.config.vocab_size:
        raise CheckpointError(
            f"The tokenizer of {found.source} has {opened.tokenizer.size:,} tokens, but the model knows "
            f"{found.config.vocab_size:,}.",
            "They don't belong together: fetch the model again.",
        )
    cache_dtype = _cache_dtype(command.cache_dtype, planned)
    capacity, shortened = _context(command, found, planned, outline.attention, cache_dtype, draft, free)

    def moved(weights: Weights) -> None:
        progress("reading weights", weights.taken / max(planned.parameters, weights.taken))

    with torch.inference_mode():
        with memory.given_back_at_once():
            model, report = found.walk(policy, kernels, moved)
        context = Context(model, capacity, cache_dtype)
        seconds = opened.seconds + time.perf_counter() - started
        progress("preparing the kernels", 1.0)
        for ids in ([0, 0], [0]):
            context.forward(ids)
        context.clear()
    reason = f"{_forms(report, 'layers')}, head {_forms(report, 'head')}"
    info = ModelInfo(
        name=command.card.name,
        architecture=found.file.FAMILY,
        parameters=report.parameters,
        dtype=_main_form(report, "layers"),
        head_dtype=_main_form(report, "head"),
        dtype_reason=reason,
        format="chat" if opened.chat else "base",
        thinking=opened.template.thinking is not None,
        context=capacity,
        model_context=found.config.positions,
        layers=found.config.layers,
        weights_bytes=report.nbytes,
        cache_bytes=context.nbytes,
        vocabulary=opened.tokenizer.vocabulary,
        vocabulary_size=opened.tokenizer.size,
        kernel=f"{kernels.NAME}+copy" if copy.kept else kernels.NAME,
        threads=threads,
        load_seconds=seconds,
        stop=opened.template.stops,
        max_tokens=None if opened.chat else BASE_MAX_TOKENS,
        loss=recall(opened.checkpoint.weight_files).get(reason),
        copy_bytes=report.copy_bytes,
        copy_reason=copy.reason,
        notices=(
            *opened.notices,
            *report.notices,
            *notices,
            *_lacking(policy, planned, can),
            *_left_dense(policy, planned, can),
            *((copy.reason,) if copy.unexpected else ()),
            *shortened,
        ),
        fingerprint=fingerprint(opened.checkpoint.weight_files),
    )
    return Session(opened, context, info, opened.sampler, opened.sources)


def share(other: Session, opened: Opened) -> Session:
    """Return a session of its own caches and records over the weights of another one, which stay there once.

    Args:
        other: It was loaded from the same files in the same way.
        opened: Header, tokenizer and template, opened anew: the sampler may start with other settings.

    Raises:
        OutOfMemory: There is no room for the caches.
    """
    started = time.perf_counter()
    model, info = other.context.model, other.info
    dtype = other.context.caches[0].dtype
    memory.fit_context(
        asked=info.context,
        positions=info.model_context,
        weights=0,
        cache_bytes=lambda tokens: cache_bytes(model.attention, tokens, dtype),
        free=memory.available(),
        name=f"{info.name}, a second time,",
    )
    with torch.inference_mode():
        context = Context(model, info.context, dtype)
    held = f"Its weights ({memory.gigabytes(info.weights_bytes)}) are those of {info.name} beside it, held once."
    info = replace(
        info,
        load_seconds=opened.seconds + time.perf_counter() - started,
        notices=(*opened.notices, held),
    )
    return Session(opened, context, info, opened.sampler, opened.sources)


def usable_cores() -> int:
    """Return the cores this process may run on, each counted once however many threads it has."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def policy_of(command: LoadModel, can: Abilities) -> Policy:
    """Return what becomes of weights.

    Raises:
        UsageError: No weights have the form that was asked for.
    """
    for name, asked, choices in (
        ("dtype", command.dtype, DTYPES),
        ("head", command.head, HEADS),
        ("prefill_copy", command.prefill_copy, prefill_copy.CHOICES),
    ):
        if asked not in choices:
            raise UsageError(f"{name} is {asked!r}, but has to be one of {', '.join(choices)}.")
    if command.device != "cpu":
        raise UsageError(f"The device is {command.device!r}, but tinychat runs on the CPU for now.", "Leave it out.")
    return Policy(command.dtype, can, command.device, command.head)


def _cache_dtype(asked: str, planned: Report) -> torch.dtype:
    """Return the dtype of keys and values."""
    if asked not in CACHE_DTYPES:
        raise UsageError(f"The cache's dtype is {asked!r}, but has to be one of {', '.join(CACHE_DTYPES)}.")
    if asked == "int8":
        return torch.int8
    return torch.float32 if all(form == "fp32" for _, form in planned.forms["layers"]) else torch.bfloat16


def _context(
    command: LoadModel,
    found: Architecture,
    planned: Report,
    attention: Sequence[AttentionSpec],
    cache_dtype: torch.dtype,
    draft: DraftPlan | None,
    free: int,
) -> tuple[int, tuple[str, ...]]:
    """Return the tokens the caches shall hold, and what there is to say about it."""
    positions, asked = found.config.positions, command.context
    if asked is not None and asked > positions:
        raise UsageError(
            f"--context {asked} is more than the {positions:,} tokens {command.card.name} was made for.",
            f"Use --context {positions} or less.",
        )
    if asked is not None and asked < (least := min(LEAST_ASKED, positions)):
        raise UsageError(f"--context {asked} is too small to say anything in.", f"Use --context {least} or more.")
    beside = [*(["a bf16 copy"] if planned.copy_bytes else []), *([draft.name] if draft else [])]
    capacity = memory.fit_context(
        asked=asked,
        positions=positions,
        weights=planned.nbytes + (draft.weights_bytes if draft else 0),
        cache_bytes=lambda tokens: (
            cache_bytes(attention, tokens, cache_dtype) + (draft.cache_bytes(tokens) if draft else 0)
        ),
        free=free,
        name=f"{command.card.name} with {' and '.join(beside)}" if beside else command.card.name,
    )
    if asked is None and capacity < min(positions, memory.DEFAULT_CONTEXT):
        return capacity, (
            f"The context is {capacity:,} tokens instead of {min(positions, memory.DEFAULT_CONTEXT):,}: only "
            f"{memory.gigabytes(free)} of memory are free.",
        )
    return capacity, ()


def _lacking(policy: Policy, planned: Report, can: Abilities) -> list[str]:
    """Say which fast products this machine lacks, where that changes something."""
    notices = []
    quantised = {policy.dtype, policy.head} & {"int8", "int4"}
    types = {stored for role in planned.forms.values() for stored, _ in role}
    kept = any(codes_stay(stored, form) for stored in types for form in ("int8", "int4"))
    if (quantised or (policy.dtype == "auto" and kept)) and not can.blocks:
        notices.append(f"Without Numba there is no product by blocks: quantised weights became {policy.dense}.")
    if policy.dtype == "auto" and not can.bf16 and types & {"F32", "F16", "BF16"}:
        notices.append("This machine has no packed bf16 product: dense weights are fp32, exact but slower.")
    if policy.dtype == "bf16" and not can.bf16:
        notices.append("This machine has no packed bf16 product: the plain one serves, slower.")
    if policy.dense == "fp32" and not can.fp32:
        notices.append("This machine has no packed fp32 product: the plain one serves, slower.")
    return notices


def _left_dense(policy: Policy, planned: Report, can: Abilities) -> list[str]:
    """Say what was to be quantised, and could not be."""
    notices = []
    for role, what, asked in (("layers", "the layers' weights", policy.dtype), ("head", "the head", policy.head)):
        forms = planned.forms[role]
        if asked in ("int8", "int4") and can.blocks and any(form != asked for _, form in forms):
            share = sum(count for (_, form), count in forms.items() if form != asked) / sum(forms.values())
            notices.append(
                f"{share:.0%} of {what} became {policy.dense} instead of {asked}: the matrices' width is no multiple "
                f"of {GROUP}."
            )
    return notices


def _main_form(report: Report, role: str) -> str:
    """Return the form most parameters of a role have."""
    return max(report.forms[role].items(), key=lambda item: item[1])[0][1]


def _forms(report: Report, role: str) -> str:
    """Return what became of a role's matrices: "int4 (file Q4_1), int8 (file BF16, quantised)"."""
    ranked = sorted(report.forms[role].items(), key=lambda item: -item[1])
    return ", ".join(f"{form} (file {stored}{_changed(stored, form)})" for (stored, form), _ in ranked)


def _changed(stored: str, form: str) -> str:
    """Return what happened to the codes, where something did."""
    plain = stored in ("F32", "F16", "BF16")
    if form not in ("int8", "int4"):
        return "" if plain else ", dequantised"
    if codes_stay(stored, form):
        return ""
    return ", quantised" if plain else ", requantised"
