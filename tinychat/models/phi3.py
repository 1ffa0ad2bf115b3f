"""Phi-3 and Phi-3.5: Llama's shape, with queries, keys and values in one matrix, gate and up in another, and longer
contexts by LongRoPE, whose angles change where a sequence passes the length of the first training.

Abdin et al. 2024, arXiv:2404.14219.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinychat.kernels import Kernels
from tinychat.models import pre_norm
from tinychat.models.base import Weights, llama_names
from tinychat.models.config import DecoderConfig, gguf_fields, json_fields, windows

MODEL_TYPES = ("phi3",)
FAMILY = "Phi-3"


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Fields are the keys of config.json."""

    sliding_window: int | None = None
    """Positions that a token sees; None: all."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Config:
        """Read a config.json.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = json_fields(config, source, activations=("silu",), partial=True)
        (window,) = windows(config.get("sliding_window"), ["sliding_attention"])
        return cls(**fields, sliding_window=window)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Read a GGUF header: its keys and values, and its tensors' names. Its window is 0 where there is none.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = gguf_fields(metadata, "phi3", names, source, partial=True)
        return cls(**fields, sliding_window=metadata.get("phi3.attention.sliding_window") or None)


class Model(pre_norm.PreNormDecoder):
    """The decoder."""

    FAMILY = FAMILY

    def __init__(self, config: Config, weights: Weights, kernels: Kernels) -> None:
        """Take every parameter from `weights`."""
        ropes = [weights.rope(config.rope)] * config.layers
        attention = pre_norm.specs(config, ropes, [config.sliding_window] * config.layers)
        super().__init__(config, weights, kernels, attention, joined=True)


def names(*, gguf: bool) -> dict[str, str | None]:
    """Return the file's names for the parameters, layer by layer, that aren't the model's own.

    Args:
        gguf: Of llama.cpp's converter; else those of Hugging Face checkpoints.
    """
    if not gguf:
        return {}
    return llama_names(
        {
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        }
    )
