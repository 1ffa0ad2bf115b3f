"""Phi-3 and Phi-3.5: Llama's shape, with queries, keys and values in one matrix, gate and up in another, and longer
contexts by LongRoPE, whose angles change where a sequence passes the length of the first training.

Abdin et al. 2024, arXiv:2404.14219.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinychat.kernels import Kernels
from tinychat.models.base import Weights, llama_names
from tinychat.models.cache import AttentionSpec
from tinychat.models.config import DecoderConfig, gguf_fields, json_fields
from tinychat.models.layers import Attention, Decoder, GatedMLP, PreNormBlock

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
        return cls(**fields, sliding_window=config.get("sliding_window"))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Read a GGUF header: its keys and values, and its tensors' names. Its window is 0 where there is none.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = gguf_fields(metadata, "phi3", names, source, partial=True)
        return cls(**fields, sliding_window=metadata.get("phi3.attention.sliding_window") or None)


def block(config: Config, weights: Weights, layer: int, spec: AttentionSpec, kernels: Kernels) -> PreNormBlock:
    """Take the parameters of one layer."""
    name = f"model.layers.{layer}"
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    C, inner = config.hidden_size, config.intermediate_size
    qkv_proj = weights.linear([(f"{name}.self_attn.qkv_proj", (H + 2 * K) * D)], C)
    o_proj = weights.linear([(f"{name}.self_attn.o_proj", C)], H * D)
    gate_up_proj = weights.linear([(f"{name}.mlp.gate_up_proj", 2 * inner)], C)
    down_proj = weights.linear([(f"{name}.mlp.down_proj", C)], inner)
    norms = [weights.norm(f"{name}.{norm}.weight", C) for norm in ("input_layernorm", "post_attention_layernorm")]
    return PreNormBlock(
        layer,
        (norms[0], norms[1]),
        Attention(qkv_proj, o_proj, H, spec, kernels),
        GatedMLP(gate_up_proj, down_proj, kernels.silu_mul),
        config.rms_norm_eps,
        kernels,
    )


class Model(Decoder):
    """The decoder."""

    FAMILY = FAMILY

    def __init__(self, config: Config, weights: Weights, kernels: Kernels) -> None:
        """Take every parameter from `weights`.

        Args:
            config: The numbers.
            weights: Tensors under Hugging Face's names.
            kernels: The primitives: `kernels.plain` or `kernels.fused`.
        """
        self.config = config
        self.kernels = kernels
        self.device = weights.device
        self.eps = config.rms_norm_eps
        size, rope = config.head_dim, weights.rope(config.rope)
        spec = AttentionSpec(config.num_key_value_heads, size, size**-0.5, rope, config.sliding_window)
        self.attention = (spec,) * config.num_hidden_layers
        self.embed_tokens, self.lm_head = weights.ends(
            config.vocab_size, config.hidden_size, tied=config.tie_word_embeddings
        )
        self.layers = [block(config, weights, n, spec, kernels) for n, spec in enumerate(self.attention)]
        self.norm = weights.norm("model.norm.weight", config.hidden_size)


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
