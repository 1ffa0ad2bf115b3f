"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864): the tables of cosines and sines.

Style "half": component i of a head turns together with component i + D/2, as in every Hugging Face checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tinychat.errors import UnsupportedModel


class Rotary:
    """Cosines and sines of every position that fits a cache."""

    def __init__(self, inv_freq: torch.Tensor, positions: int) -> None:
        """Compute the tables.

        Args:
            inv_freq: Angle a position adds, [D/2], fp32.
            positions: How many positions to prepare.
        """
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * inv_freq.float()[None, :]
        self.cos = angles.cos()  # [positions, D/2]
        self.sin = angles.sin()

    @property
    def nbytes(self) -> int:
        """Bytes of both tables."""
        return self.cos.nbytes + self.sin.nbytes


def inverse_frequencies(size: int, theta: float) -> torch.Tensor:
    """Return theta^(-2i/size) for i in 0..size/2-1, fp32 [size/2]."""
    return 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size))


def rope_theta(config: Mapping[str, Any], default: float, source: str) -> float:
    """Read the base from a config.json, in transformers' old keys and its new ones; refuse scaled variants by name.

    Raises:
        UnsupportedModel: The config asks for a RoPE variant.
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
    return float(parameters.get("rope_theta") or config.get("rope_theta") or default)
