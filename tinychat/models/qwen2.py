"""Qwen2 and Qwen2.5: Llama's shape with biases on queries, keys and values (Yang et al. 2024, arXiv:2407.10671).

Configs name a window that is off unless `use_sliding_window` says otherwise; then the later layers have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinychat.kernels import Kernels
from tinychat.models import pre_norm
from tinychat.models.base import Weights
from tinychat.models.config import DecoderConfig, gguf_fields, json_fields, late_windows

MODEL_TYPES = ("qwen2",)
FAMILY = "Qwen2"


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Fields are the keys of config.json, but for `windows`: positions each layer sees (None: all)."""

    windows: tuple[int | None, ...] = ()

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Config:
        """Read a config.json.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = json_fields(config, source, activations=("silu",), positions=32768)
        return cls(**fields, windows=late_windows(config, fields["num_hidden_layers"]))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Read a GGUF header: its keys and values, and its tensors' names.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = gguf_fields(metadata, "qwen2", names, source)
        return cls(**fields, windows=(None,) * fields["num_hidden_layers"])


class Model(pre_norm.PreNormDecoder):
    """The decoder."""

    FAMILY = FAMILY

    def __init__(self, config: Config, weights: Weights, kernels: Kernels) -> None:
        """Take every parameter from `weights`."""
        ropes = [weights.rope(config.rope)] * config.layers
        super().__init__(config, weights, kernels, pre_norm.specs(config, ropes, config.windows), qkv_bias=True)


def names(*, gguf: bool) -> dict[str, str | None]:
    """Return the file's names for the parameters that aren't the model's own."""
    return pre_norm.names(gguf)
