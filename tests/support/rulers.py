"""Our models beside transformers': build one from a checkpoint, run it with open taps, measure the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch
from transformers import PreTrainedModel

from tinychat.catalog import FileSource, ModelCard
from tinychat.engine.context import Context
from tinychat.engine.loading import Architecture, architecture
from tinychat.engine.opening import open_model
from tinychat.engine.reference import Measured, run
from tinychat.kernels import Kernels, fused, plain
from tinychat.models.base import Report
from tinychat.models.cache import SlabCache, rotaries
from tinychat.models.linear import Abilities, abilities
from tinychat.models.policy import Policy
from tinychat.models.probe import Probe

KERNELS: Final[tuple[Kernels, ...]] = (plain, fused)
reference: Final = run
"""Run transformers' model."""
NO_ABILITIES: Final = Abilities(**{ability.name: False for ability in fields(Abilities)})


@dataclass(frozen=True)
class Built:
    """One of our models, and what was said when it was built."""

    model: Any
    report: Report
    planned: Report
    """What the walk over the header alone said."""
    cache_dtype: torch.dtype

    def caches(self, capacity: int) -> list[SlabCache]:
        """Return an empty slab a layer, for a sequence of `capacity` tokens."""
        model = self.model
        tables = rotaries(model.attention, capacity, model.device)
        for table in tables.values():
            table.fit(capacity)
        return [
            SlabCache(layer, capacity, self.cache_dtype, model.device, model.kernels, tables.get(id(layer.rope)))
            for layer in model.attention
        ]

    def context(self, capacity: int = 128) -> Context:
        """Return empty caches."""
        with torch.inference_mode():
            return Context(self.model, capacity, self.cache_dtype)


def card(path: Path, **changes: Any) -> ModelCard:
    """Return the card of a file or folder."""
    return ModelCard(**{"name": path.stem, "source": FileSource(str(path))} | changes)


@contextmanager
def found(path: Path) -> Iterator[Architecture]:
    """Open a checkpoint as far as its names and numbers."""
    opened = open_model(path, card(path))
    with opened.checkpoint:
        yield architecture(opened)


def build(
    path: Path,
    dtype: str = "fp32",
    kernels: Kernels = plain,
    can: Abilities | None = None,
    head: str = "auto",
    *,
    copy: bool = False,
) -> Built:
    """Build a model as the engine does."""
    policy = Policy(dtype, can or abilities(), head=head, copy=copy)
    with torch.inference_mode(), found(path) as architecture:
        _, planned = architecture.walk(policy)
        model, report = architecture.walk(policy, kernels, lambda _: None)
    cache = torch.float32 if all(form == "fp32" for _, form in planned.forms["layers"]) else torch.bfloat16
    return Built(model, report, planned, cache)


@torch.inference_mode()
def measure(built: Built, ids: Sequence[int], step: int | None = None) -> Measured:
    """Run our model over `ids`, `step` tokens at a time (None: all at once)."""
    model = built.model
    caches = built.caches(len(ids))
    layers = model.config.layers
    names = [*(f"blocks.{n}.hook_resid_pre" for n in range(layers)), f"blocks.{layers - 1}.hook_resid_post"]
    names.append("ln_final.hook_normalized")
    seen: list[dict[str, torch.Tensor]] = []
    logits = []
    for start in range(0, len(ids), step or len(ids)):
        probe = Probe()
        part = torch.tensor(ids[start : start + (step or len(ids))])
        logits.append(model.forward(part, caches, probe, every_position=True))
        seen.append(probe.seen)
    hidden = tuple(torch.cat([taps[name] for taps in seen]).float() for name in names)
    return Measured(hidden, torch.cat(logits))


@torch.inference_mode()
def reference_greedy(model: PreTrainedModel, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
    """Return transformers' greedy continuation, computed afresh for each token, and the least lead a best token had."""
    ids = list(prompt)
    lead = float("inf")
    for _ in range(count):
        best = model(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        lead = min(lead, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], lead


@torch.inference_mode()
def assert_greedy(model: PreTrainedModel, prompt: Sequence[int], made: Sequence[int]) -> None:
    """Hold a continuation to transformers' greedy one: each id is the best after those before it, and by a lead.

    All of them are judged in one pass, which is for models whose logits don't depend on what comes later: not for
    those that turn by other angles where a sequence is longer.
    """
    best = model(torch.tensor([[*prompt, *made[:-1]]]), use_cache=False).logits[0, len(prompt) - 1 :].topk(2)
    assert list(made) == best.indices[:, 0].tolist()
    assert float((best.values[:, 0] - best.values[:, 1]).min()) > 1e-3, "a tie proves nothing"


@torch.inference_mode()
def greedy(context: Context, prompt: Sequence[int], count: int) -> list[int]:
    """Return our greedy continuation: the prompt in one pass, then a token a step."""
    logits = context.forward(prompt)
    ids = [int(logits.argmax())]
    while len(ids) < count:
        ids.append(int(context.forward(ids[-1:]).argmax()))
    return ids


def assert_close(actual: Measured, expected: Measured, *, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Hold every hidden state and the logits to the reference; `atol` is a share of the largest number of each."""
    assert len(actual.hidden) == len(expected.hidden)
    names = [*(f"into layer {n}" for n in range(len(expected.hidden) - 2)), "out of the last layer", "final norm"]
    pairs = [*zip(names, actual.hidden, expected.hidden, strict=True), ("logits", actual.logits, expected.logits)]
    for name, ours, theirs in pairs:
        torch.testing.assert_close(
            ours,
            theirs,
            rtol=rtol,
            atol=atol * float(theirs.abs().max()),
            msg=lambda text, name=name: f"{name}: {text}",
        )


def state_error(actual: Measured, expected: Measured) -> float:
    """Return the largest relative error of a layer's states: |ours - theirs| / |theirs| over all positions."""
    return max(float((a - e).norm() / e.norm()) for a, e in zip(actual.hidden, expected.hidden, strict=True))


def divergence(actual: Measured, expected: Measured) -> float:
    """Return the mean over positions of KL(theirs || ours), in nats, of the distributions of the next token."""
    ours, theirs = actual.logits.double().log_softmax(-1), expected.logits.double().log_softmax(-1)
    return float((theirs.exp() * (theirs - ours)).sum(-1).mean())
