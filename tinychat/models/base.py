"""What an architecture is built from: the checkpoint's tensors under its own names, each taken exactly once.

A model's constructor asks `Weights` for every parameter by name and shape. It runs twice: over the header alone (what
is missing, misshapen or left over, and how many bytes will be resident), then over the data. So the list of parameters
is written down once, where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol

import torch

from tinychat.errors import CheckpointError
from tinychat.kernels import Kernels
from tinychat.models.cache import AttentionSpec, Cache
from tinychat.models.embedding import Embedding
from tinychat.models.linear import Linear
from tinychat.models.policy import Part, Policy, StoredTensor
from tinychat.models.probe import CLOSED, Probe
from tinychat.models.rope import Rope
from tinychat.models.rope_settings import RopeSettings

_SHOWN = 5
"""How many names an error lists before it says "and N more"."""


class Config(Protocol):
    """The numbers of an architecture; its fields have the checkpoint's names, these two the engine's."""

    @property
    def layers(self) -> int: ...
    @property
    def positions(self) -> int:
        """Longest sequence the model was made for."""


def check_numbers(config: Any) -> None:
    """Hold the fields of a `Config` to their annotations; what a file says may be of any type.

    Raises:
        ValueError: A field is no number of its kind, or a count is below 1.
    """
    for declared in fields(config):
        value = getattr(config, declared.name)
        if declared.type == "int" and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{declared.name} is {value!r}, which is no count")
        if declared.type == "float" and not (isinstance(value, (int, float)) and value > 0):
            raise ValueError(f"{declared.name} is {value!r}, which is no number above 0")


class Model(Protocol):
    """A decoder: ids in, logits out."""

    FAMILY: ClassVar[str]
    config: Any
    kernels: Kernels
    device: str
    attention: tuple[AttentionSpec, ...]
    """How each layer attends."""

    def forward(
        self, ids: torch.Tensor, caches: Sequence[Cache], probe: Probe = CLOSED, *, every_position: bool = False
    ) -> torch.Tensor:
        """Append ids [T] to the caches; return logits, fp32: [1, V] of the last position, or [T, V] of every one."""

    def states(
        self, ids: torch.Tensor, caches: Sequence[Cache], probe: Probe = CLOSED, *, every_position: bool = False
    ) -> torch.Tensor:
        """The same without the head: what it reads, activations [1, C] or [T, C]."""

    def normed(self, residual: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """Add `delta` to the residual stream, fp32 [T, C], in place; return what the head reads, activations [T, C]."""

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, fp32 [T, V], for what the head reads, [T, C]."""


@dataclass(slots=True)
class Report:
    """What a walk over a checkpoint found, and what became of it."""

    parameters: int = 0
    nbytes: int = 0
    """Bytes resident."""
    copy_bytes: int = 0
    """Those of them that are bf16 copies for prompts."""
    forms: dict[str, dict[tuple[str, str], int]] = field(default_factory=dict)
    """"layers" or "head" -> (type in the file, form in memory) -> parameters."""
    became: dict[str, list[str]] = field(default_factory=dict)
    """Type in the file -> forms that tensors of it take in memory, of every role."""
    notices: list[str] = field(default_factory=list)


class Weights:
    """The tensors of a checkpoint under the model's names."""

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        policy: Policy,
        *,
        source: str,
        gguf: bool,
        dry: bool = False,
        progress: Callable[[], None] | None = None,
    ) -> None:
        """Wrap renamed tensors.

        Args:
            tensors: The model's name -> stored tensor.
            policy: Which forms matrices take.
            source: The file or folder, for error sentences.
            gguf: Whether llama.cpp's converter wrote them: it permutes and transposes some matrices.
            dry: Only look at names and shapes; what is returned must not be used.
            progress: Called as `taken` grows; what it raises ends the load.
        """
        self._tensors = tensors
        self._left = set(tensors)
        self._missing: list[str] = []
        self._misshapen: list[str] = []
        self._policy = policy
        self._source = source
        self.gguf = gguf
        self.device = policy.device
        self._dry = dry
        self._progress = progress
        self.taken = 0
        """Parameters asked for so far, a tied one each time."""
        self.report = Report()

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds `name`."""
        return name in self._tensors

    def ignore(self, name: str, why: str) -> None:
        """Pass over a tensor, and say so."""
        self._left.discard(name)
        self.report.notices.append(f"{name} is in the file, but not used: {why}.")

    def pass_over(self, prefixes: tuple[str, ...], what: str, why: str) -> None:
        """Pass over all tensors whose names begin so, and say so once: `what` they are, `why` they are of no use."""
        found = {name for name in self._left if name.startswith(prefixes)}
        self._left -= found
        if found:
            self.report.notices.append(f"{len(found)} tensors in the file, {what}, are not used: {why}.")

    def vector(self, name: str, size: int, order: torch.Tensor | None = None) -> torch.Tensor:
        """Take a norm's weight or a bias, put into `order`: fp32 [size]."""
        stored = self._take(name, (size,))
        if stored is not None:
            self._becomes(stored, "fp32")
        if stored is None or self._dry:
            return torch.empty(size, device="meta")
        values = self._policy.vector(stored)
        return values if order is None else values[order]

    def norm(self, name: str, size: int, plus: float = 0.0) -> torch.Tensor:
        """Take a norm's weight or bias: fp32 [size], with `plus` added where a family stores weights less that."""
        self.report.nbytes += 4 * size
        return self.vector(name, size) + plus if plus else self.vector(name, size)

    def layer_norm(self, name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a layer norm's weight and bias: fp32 [size] each."""
        return self.norm(f"{name}.weight", size), self.norm(f"{name}.bias", size)

    def rope(self, settings: RopeSettings) -> Rope:
        """Return the rotation, with the factors that a GGUF file keeps in tensors."""
        names = ("rope_freqs", "rope_factors_short", "rope_factors_long")
        size = settings.rotary_dim // 2
        factors = {name: self.vector(f"{name}.weight", size) for name in names if self.has(f"{name}.weight")}
        if self._dry:
            factors = {name: torch.ones(size) for name in factors}
        return settings.rope(factors)

    def embedding(self, name: str, rows: int, width: int, tied: Linear | None = None) -> Embedding:
        """Take a table of rows to be looked up; `tied` is the head that was built of the same tensor."""
        stored = self._take(name, (rows, width))
        if stored is not None:
            self._becomes(stored, self._policy.form(stored, "embedding"))
        if stored is None or self._dry:
            made = Embedding()
            made.nbytes = 0 if stored is None else self._policy.embedding_bytes(stored, tied)
        else:
            made = self._policy.embedding(stored, tied)
        self.report.nbytes += made.nbytes
        return made

    def ends(
        self, rows: int, width: int, *, tied: bool, table: str = "model.embed_tokens", head: str = "lm_head"
    ) -> tuple[Embedding, Linear]:
        """Take the embedding and the head of a decoder, tied or not; `table` and `head` are their names."""
        if tied and self.has(f"{head}.weight"):
            self.ignore(f"{head}.weight", "config.json ties the head to the embedding")
        lm_head = self.linear([(table if tied else head, rows)], width, role="head", tied=tied)
        return self.embedding(f"{table}.weight", rows, width, lm_head if tied else None), lm_head

    def linear(
        self,
        projections: Sequence[tuple[str, int]],
        width: int,
        *,
        bias: bool = False,
        orders: Sequence[torch.Tensor | None] = (),
        transposed: bool = False,
        role: str = "layers",
        tied: bool = False,
    ) -> Linear:
        """Take projections that share an input, packed as one product.

        Args:
            projections: (name without ".weight", output rows) of each, in the order of the outputs.
            width: Inputs of all of them.
            bias: Whether each has a ".bias".
            orders: For each projection the order its rows are to be put in, or None; empty leaves all.
            transposed: Whether the file holds them as [in, out].
            role: "layers" or "head": where the report counts them.
            tied: The tensor serves another parameter too and was counted there.
        """
        parts = []
        for (name, rows), order in zip(projections, orders or [None] * len(projections), strict=True):
            stored = self._take(f"{name}.weight", (width, rows) if transposed else (rows, width), tied=tied)
            values = self.vector(f"{name}.bias", rows, order) if bias else None
            if stored is not None:
                parts.append(Part(stored, order, values))
                forms = self.report.forms.setdefault(role, {})
                kind = (stored.type, self._policy.form(stored, role, transposed=transposed))
                forms[kind] = forms.get(kind, 0) + rows * width
                self._becomes(stored, kind[1])
        if len(parts) < len(projections):
            return Linear()
        if self._dry:
            made = self._policy.plan(parts, bias=bias, transposed=transposed, role=role)
        else:
            made = self._policy.linear(parts, transposed=transposed, role=role)
        self.report.nbytes += made.nbytes
        self.report.copy_bytes += made.copy_bytes
        return made

    def check(self) -> Report:
        """Return the report, once every parameter was found with its shape and no tensor is left over.

        Raises:
            CheckpointError: The sentence names the file and the tensors.
        """
        for problem, names in (
            ("lacks", self._missing),
            ("has other shapes than its config says:", self._misshapen),
            ("holds tensors that have no place in this architecture:", sorted(self._left)),
        ):
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                raise CheckpointError(
                    f"{self._source} {problem} {', '.join(names[:_SHOWN])}{more}.",
                    "Its config and its weights don't belong together: fetch the model again.",
                )
        return self.report

    def _becomes(self, stored: StoredTensor, form: str) -> None:
        forms = self.report.became.setdefault(stored.type, [])
        if form not in forms:
            forms.append(form)

    def _take(self, name: str, shape: tuple[int, ...], *, tied: bool = False) -> StoredTensor | None:
        stored = self._tensors.get(name)
        if stored is None:
            self._missing.append(name)
            return None
        self._left.discard(name)
        if tuple(stored.shape) != shape:
            self._misshapen.append(f"{name} (is {_by(stored.shape)}, has to be {_by(shape)})")
            return None
        count = torch.Size(shape).numel()
        self.taken += count
        if not tied:
            self.report.parameters += count
        if self._progress is not None:
            self._progress()
        return stored


def rename(
    tensors: Mapping[str, StoredTensor], names: Mapping[str, str | None], source: str
) -> dict[str, StoredTensor]:
    """Bring a checkpoint's names to the model's own.

    Args:
        tensors: Name in the file -> tensor.
        names: Template -> template, "{}" standing for the layer's number; None: known, and of no use. A name without a
            template stays as it is, for `Weights.check` to find.
        source: The file or folder, for error sentences.

    Raises:
        CheckpointError: Two tensors mean the same parameter.
    """
    renamed: dict[str, StoredTensor] = {}
    for name, stored in tensors.items():
        parts = name.split(".")
        layer = next((part for part in parts if part.isdigit()), "")
        template = ".".join("{}" if part == layer else part for part in parts)
        target = names.get(template, template)
        if target is None:
            continue
        target = target.replace("{}", layer)
        if target in renamed:
            raise CheckpointError(f"{source} holds {target} twice.", "Fetch the model again.")
        renamed[target] = stored
    return renamed


def llama_names(gguf: Mapping[str, str], *, biases: bool = False) -> dict[str, str | None]:
    """Return llama.cpp's names for a decoder whose own names are "model.layers.N...", layer by layer.

    Args:
        gguf: llama.cpp's name of each part of a layer -> the model's, both without ".weight".
        biases: Whether the parts may have biases.
    """
    found: dict[str, str | None] = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    for theirs, ours in gguf.items():
        for kind in ("weight", "bias") if biases else ("weight",):
            found[f"blk.{{}}.{theirs}.{kind}"] = f"model.layers.{{}}.{ours}.{kind}"
    return found


def neighbours_to_halves(heads: int, size: int) -> torch.Tensor:
    """Return the order of rows that undoes what llama.cpp's converter does to queries and keys of some families.

    It puts component i of a head beside component i + D/2, for a rotation of neighbours.
    """
    return torch.arange(heads * size).view(heads, size // 2, 2).transpose(1, 2).flatten()


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
