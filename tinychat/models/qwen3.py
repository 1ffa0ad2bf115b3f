"""Qwen3: Llama's shape with a norm on each query and key head; heads are as wide as the config says, whatever the
width of the model (Yang et al. 2025, arXiv:2505.09388).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinychat.kernels import Kernels
from tinychat.models import pre_norm
from tinychat.models.base import Weights
from tinychat.models.config import DecoderConfig, gguf_fields, json_fields, late_windows

MODEL_TYPES = ("qwen3",)
FAMILY = "Qwen3"


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Fields are the keys of config.json, but for `windows`: positions each layer sees (None: all)."""

    attention_bias: bool = False
    windows: tuple[int | None, ...] = ()

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Config:
        """Read a config.json.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = json_fields({"head_dim": 128} | dict(config), source, activations=("silu",), positions=32768)
        return cls(
            **fields,
            attention_bias=bool(config.get("attention_bias", False)),
            windows=late_windows(config, fields["num_hidden_layers"]),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Read a GGUF header: its keys and values, and its tensors' names.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = gguf_fields(metadata, "qwen3", names, source)
        return cls(**fields, attention_bias="blk.0.attn_q.bias" in names, windows=(None,) * fields["num_hidden_layers"])


class Model(pre_norm.PreNormDecoder):
    """The decoder."""

    FAMILY = FAMILY

    def __init__(self, config: Config, weights: Weights, kernels: Kernels) -> None:
        """Take every parameter from `weights`."""
        super().__init__(
            config,
            weights,
            kernels,
            pre_norm.specs(config, [weights.rope(config.rope)] * config.layers, config.windows),
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            head_norms=True,
        )


def names(*, gguf: bool) -> dict[str, str | None]:
    """Return the file's names for the parameters that aren't the model's own."""
    return pre_norm.names(gguf, {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"})
