"""What a checkpoint says of its rotation, from config.json or a GGUF header, and the `Rope` made of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tinychat.errors import CheckpointError, UnsupportedModel
from tinychat.models.rope import (
    DynamicRope,
    LongRope,
    Rope,
    inverse_frequencies,
    llama3,
    longrope_magnitude,
    yarn,
    yarn_magnitude,
)

TYPES: Final = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
_GGUF_TYPES: Final = {"none": "default", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}
_OLD_NAMES: Final = {"su": "longrope"}


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """The keys are those of config.json's `rope_parameters`."""

    rope_theta: float
    rotary_dim: int
    """R: components of a head that turn."""
    max_position_embeddings: int
    """As the checkpoint says; which length that means differs from type to type, see `positions`."""
    rope_type: str = "default"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What else the type needs: factor, low_freq_factor, short_factor ..."""

    def __post_init__(self) -> None:
        if not self.rope_theta > 0:
            raise ValueError(f"rope_theta is {self.rope_theta!r}, which is no number above 0")
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ValueError(f"{self.rotary_dim} components of a head make no pairs to turn")

    @classmethod
    def from_json(
        cls,
        config: Mapping[str, Any],
        source: str,
        *,
        size: int,
        theta: float = 10_000.0,
        positions: int = 2048,
        layer_type: str | None = None,
    ) -> RopeSettings:
        """Read a config.json, in transformers' old keys (rope_theta, rope_scaling) and its new one (rope_parameters).

        Args:
            config: Its keys and values.
            source: For error sentences.
            size: D, components of a head.
            theta: The base where the config has none.
            positions: The longest sequence where the config doesn't say.
            layer_type: For families whose layers turn differently: "full_attention" or "sliding_attention".

        Raises:
            UnsupportedModel: It asks for a variant that isn't known.
            KeyError: The variant needs a number that isn't there.
            ValueError: The numbers make no angles.
        """
        parameters = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
        nested = any(isinstance(value, Mapping) for value in parameters.values())
        if nested and layer_type is None:
            raise UnsupportedModel(f"{source} turns its layers differently (rope_parameters), unlike its family.")
        local = layer_type == "sliding_attention"
        if nested:
            parameters = dict(parameters.get(layer_type or "") or {})
        elif local:
            parameters = {}  # the old keys scale the other layers alone
        kind = str(parameters.get("rope_type", parameters.get("type", "default")))
        kind = _OLD_NAMES.get(kind, kind)
        if kind not in TYPES:
            raise UnsupportedModel(
                f"{source} asks for RoPE of type {kind!r}; tinychat knows {', '.join(TYPES)}.",
                "Choose a model with one of these.",
            )
        positions = config.get("max_position_embeddings", positions)
        if (original := config.get("original_max_position_embeddings")) is not None:
            parameters["original_max_position_embeddings"] = original
        base = parameters.get("rope_theta") or config.get("rope_local_base_freq" if local else "rope_theta") or theta
        part = parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        settings = cls(float(base), int(size * part), positions, kind, parameters)
        settings.rope()  # what is missing or makes no angles is found while the file's name is known
        return settings

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        architecture: str,
        names: Collection[str],
        source: str,
        *,
        size: int,
        theta: float = 10_000.0,
        local: bool = False,
    ) -> RopeSettings:
        """Read a GGUF header.

        Args:
            metadata: Its keys and values.
            architecture: What its keys begin with.
            names: Its tensors' names: some variants keep factors in tensors of their own.
            source: For error sentences.
            size: D, components of a head.
            theta: The base where the header has none.
            local: Read what layers with a window do: a base of their own, no scaling.

        Raises:
            UnsupportedModel: It asks for a variant that isn't known.
        """

        def key(name: str) -> Any:
            return metadata.get(f"{architecture}.rope.{name}")

        positions = metadata[f"{architecture}.context_length"]
        turning = key("dimension_count") or size
        if local:
            return cls(float(key("freq_base_swa") or theta), turning, positions)
        # llama.cpp takes a factor without a type for linear scaling, and so does the one key of older files.
        factor = key("scaling.factor") or key("scale_linear") or 1.0
        named = str(key("scaling.type") or ("none" if factor == 1.0 else "linear"))
        if named not in _GGUF_TYPES:
            raise UnsupportedModel(
                f"{source} asks for RoPE scaling of type {named!r}; tinychat knows {', '.join(_GGUF_TYPES)}.",
                "Choose a file with one of these.",
            )
        kind = "longrope" if "rope_factors_long.weight" in names else _GGUF_TYPES[named]
        if kind == "longrope" and "rope_factors_short.weight" not in names:
            raise CheckpointError(f"{source} lacks the tensors of its RoPE factors.", "Fetch the model again.")
        parameters = {
            "factor": factor,
            "original_max_position_embeddings": key("scaling.original_context_length"),
            "beta_fast": key("scaling.yarn_beta_fast"),
            "beta_slow": key("scaling.yarn_beta_slow"),
            "attention_factor": key("scaling.attn_factor"),
        }
        if kind == "yarn":  # llama.cpp's attn_factor comes on top of YaRN's own
            whole, extra = key("scaling.yarn_attn_factor"), key("scaling.attn_factor") or 1.0
            parameters["attention_factor"] = extra * yarn_magnitude(factor) if whole is None and extra != 1.0 else whole
        if multiplier := key("scaling.yarn_log_multiplier"):
            parameters |= {"mscale": 1.0, "mscale_all_dim": multiplier}
        return cls(float(key("freq_base") or theta), turning, positions, kind, parameters)

    @property
    def positions(self) -> int:
        """Longest sequence the model was made for.

        `max_position_embeddings` is the stretched length where longrope and llama3 are asked for and the original one
        with dynamic; with yarn it is the one or the other, so the larger of both counts.
        """
        if self.rope_type == "dynamic":
            return int(self.max_position_embeddings * self.parameters["factor"])
        if self.rope_type == "yarn":
            return max(self.max_position_embeddings, int(self._original() * self._stretch()))
        return self.max_position_embeddings

    def rope(self, tensors: Mapping[str, torch.Tensor] | None = None) -> Rope:
        """Return the rotation.

        Args:
            tensors: The factors that a GGUF file keeps in tensors, fp32 [R/2] each: "rope_freqs" (angles are divided
                by them), "rope_factors_short", "rope_factors_long".
        """
        tensors, given = tensors or {}, self.parameters
        plain = inverse_frequencies(self.rotary_dim, self.rope_theta)
        if "rope_freqs" in tensors:
            plain = plain / tensors["rope_freqs"]
        match self.rope_type:
            case "linear":
                rope = Rope(plain / given["factor"])
            case "dynamic":
                rope = DynamicRope(self.rotary_dim, self.rope_theta, given["factor"], self.max_position_embeddings)
            case "llama3":
                low, high = given["low_freq_factor"], given["high_freq_factor"]
                rope = Rope(llama3(plain, factor=given["factor"], low=low, high=high, original=self._original()))
            case "yarn":
                rope = Rope(self._yarn(plain), self._yarn_factor())
            case "longrope":
                short, long = (self._factors(tensors, length) for length in ("short", "long"))
                factor = given.get("attention_factor")
                if factor is None:
                    factor = longrope_magnitude(self._stretch(), self._original())
                rope = LongRope(plain / short, plain / long, self._original(), factor)
            case _:
                rope = Rope(plain)
        if not bool(torch.isfinite(rope.angles(rope.regime(1))).all()):
            raise ValueError(f"the numbers of its {self.rope_type} RoPE make no angles")
        return rope

    def _original(self) -> int:
        """Return the length of the first training."""
        return int(self.parameters.get("original_max_position_embeddings") or self.max_position_embeddings)

    def _stretch(self) -> float:
        """Return how far the context is stretched."""
        return float(self.parameters.get("factor") or self.max_position_embeddings / self._original())

    def _yarn(self, plain: torch.Tensor) -> torch.Tensor:
        given = self.parameters
        return yarn(
            plain,
            theta=self.rope_theta,
            factor=self._stretch(),
            original=self._original(),
            beta_fast=given.get("beta_fast") or 32.0,
            beta_slow=given.get("beta_slow") or 1.0,
            truncate=given.get("truncate", True),
        )

    def _yarn_factor(self) -> float:
        given, stretch = self.parameters, self._stretch()
        if (factor := given.get("attention_factor")) is not None:
            return float(factor)
        if (slope := given.get("mscale")) and (all_dim := given.get("mscale_all_dim")):
            return yarn_magnitude(stretch, slope) / yarn_magnitude(stretch, all_dim)
        return yarn_magnitude(stretch)

    def _factors(self, tensors: Mapping[str, torch.Tensor], length: str) -> torch.Tensor:
        """Return the factors of "short" or "long" sequences, fp32 [R/2]."""
        if (factors := tensors.get(f"rope_factors_{length}")) is not None:
            return factors
        factors = torch.tensor(self.parameters[f"{length}_factor"], dtype=torch.float32)
        if factors.shape != (self.rotary_dim // 2,):
            raise ValueError(f"{length}_factor has {factors.numel()} numbers for {self.rotary_dim // 2} pairs")
        return factors
