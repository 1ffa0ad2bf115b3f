"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864): which angle a position adds to which pair.

Style "half": component i of the R components that turn goes together with component i + R/2, as in every Hugging Face
checkpoint. `Rope` is what a model asks for; `Rotary` holds its tables of cosines and sines.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tinychat.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """What a checkpoint says of its rotation; the keys are those of config.json's `rope_parameters`."""

    rope_theta: float
    rope_type: str = "default"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What else the type needs: factor, low_freq_factor, short_factor ..."""

    def __post_init__(self) -> None:
        if not self.rope_theta > 0:
            raise ValueError(f"rope_theta is {self.rope_theta!r}, which is no number above 0")

    @classmethod
    def from_json(cls, config: Mapping[str, Any], default: float, source: str) -> RopeSettings:
        """Read a config.json, in transformers' old keys (rope_theta, rope_scaling) and its new one (rope_parameters).

        Raises:
            UnsupportedModel: It asks for a variant that isn't known.
        """
        parameters = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
        kind = str(parameters.get("rope_type", parameters.get("type", "default")))
        if kind != "default":
            raise UnsupportedModel(
                f"{source} asks for RoPE of type {kind!r}; tinychat knows plain RoPE only.",
                "Choose a model without RoPE scaling.",
            )
        if float(config.get("partial_rotary_factor") or parameters.get("partial_rotary_factor") or 1.0) != 1.0:
            raise UnsupportedModel(f"{source} rotates only a part of each head (partial_rotary_factor).")
        return cls(float(parameters.get("rope_theta") or config.get("rope_theta") or default))

    @classmethod
    def from_gguf(
        cls, metadata: Mapping[str, Any], architecture: str, names: Collection[str], source: str
    ) -> RopeSettings:
        """Read a GGUF header.

        Raises:
            UnsupportedModel: It asks for a variant that isn't known.
        """
        # llama.cpp takes a factor without a type for linear scaling, and so does the one key of older files.
        key = f"{architecture}.rope"
        factor = metadata.get(f"{key}.scaling.factor") or metadata.get(f"{key}.scale_linear") or 1.0
        scaling = metadata.get(f"{key}.scaling.type", "none" if factor == 1.0 else "linear")
        if scaling != "none" or "rope_freqs.weight" in names:
            raise UnsupportedModel(
                f"{source} asks for scaled RoPE; tinychat knows plain RoPE only.", "Choose a model without it."
            )
        return cls(float(metadata.get(f"{key}.freq_base", 10_000.0)))

    def rope(self, size: int) -> Rope:
        """Return the rotation of heads of which `size` components turn."""
        return Rope(inverse_frequencies(size, self.rope_theta))


class Rope:
    """A rotation whose angles are the same at every length."""

    def __init__(self, inv_freq: torch.Tensor, factor: float = 1.0) -> None:
        """Take the angle a position adds, fp32 [R/2], and what cosines and sines are multiplied by."""
        self.inv_freq = inv_freq
        self.factor = factor

    def regime(self, total: int) -> int:
        """Return a number that differs between lengths of a sequence whose angles differ.

        Where it changes, keys in a cache have been turned by other angles, and the sequence is computed afresh.
        """
        del total
        return 0

    def angles(self, regime: int) -> torch.Tensor:
        """Return the angle a position adds in sequences of this regime, fp32 [R/2]."""
        del regime
        return self.inv_freq


class Rotary:
    """Cosines and sines of every position that fits a cache."""

    def __init__(self, rope: Rope, positions: int, device: str = "cpu") -> None:
        """Compute the tables of short sequences."""
        self.rope = rope
        self._positions = torch.arange(positions, dtype=torch.float32)[:, None]
        self._device = device
        self.regime = rope.regime(1)
        self.tables = self._computed()

    def fit(self, total: int) -> None:
        """Turn to the angles of sequences of `total` tokens."""
        regime = self.rope.regime(total)
        if regime != self.regime:
            self.regime = regime
            self.tables = self._computed()

    def _computed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, fp32 [positions, R/2]."""
        angles = self._positions * self.rope.angles(self.regime).float()[None, :]
        return (angles.cos() * self.rope.factor).to(self._device), (angles.sin() * self.rope.factor).to(self._device)


def inverse_frequencies(size: int, theta: float) -> torch.Tensor:
    """Return theta^(-2i/size) for i in 0..size/2-1, fp32 [size/2]."""
    return 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size))
