"""Llama, and what shares its shape (SmolLM2, TinyLlama, Mistral from GGUF): no biases unless the config asks for them.

Llama 3.x scales its rotation; llama.cpp keeps the factors of that in a tensor, "rope_freqs.weight".
Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinychat.kernels import Kernels
from tinychat.models import pre_norm
from tinychat.models.base import Weights
from tinychat.models.config import DecoderConfig, gguf_fields, json_fields

MODEL_TYPES = ("llama",)
FAMILY = "Llama"


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Fields are the keys of config.json."""

    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Config:
        """Read a config.json.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        return cls(
            **json_fields(config, source, activations=("silu",)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Read a GGUF header: its keys and values, and its tensors' names.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        return cls(
            **gguf_fields(metadata, "llama", names, source),
            attention_bias="blk.0.attn_q.bias" in names,
            mlp_bias="blk.0.ffn_gate.bias" in names,
        )


class Model(pre_norm.PreNormDecoder):
    """The decoder."""

    FAMILY = FAMILY

    def __init__(self, config: Config, weights: Weights, kernels: Kernels) -> None:
        """Take every parameter from `weights`."""
        super().__init__(
            config,
            weights,
            kernels,
            pre_norm.specs(config, [weights.rope(config.rope)] * config.layers),
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            mlp_bias=config.mlp_bias,
            permuted=weights.gguf,
        )


def names(*, gguf: bool) -> dict[str, str | None]:
    """Return the file's names for the parameters that aren't the model's own."""
    return pre_norm.names(gguf)
