"""Llama, and what shares its shape (SmolLM2, TinyLlama): RMS norm before each sublayer, rotary positions, grouped-query
attention, a gated MLP, no biases unless the config asks for them.

Shapes as in layers.py. Touvron et al. 2023, arXiv:2302.13971.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinychat.kernels import Kernels
from tinychat.models.base import Weights, llama_names, neighbours_to_halves
from tinychat.models.cache import AttentionSpec
from tinychat.models.config import DecoderConfig, gguf_fields, json_fields
from tinychat.models.layers import Attention, Decoder, GatedMLP, PreNormBlock

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


def block(config: Config, weights: Weights, layer: int, spec: AttentionSpec, kernels: Kernels) -> PreNormBlock:
    """Take the parameters of one layer."""
    name = f"model.layers.{layer}"
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    C, inner = config.hidden_size, config.intermediate_size
    attn, mlp = f"{name}.self_attn", f"{name}.mlp"
    qkv_proj = weights.linear(
        [(f"{attn}.q_proj", H * D), (f"{attn}.k_proj", K * D), (f"{attn}.v_proj", K * D)],
        C,
        bias=config.attention_bias,
        orders=[neighbours_to_halves(H, D), neighbours_to_halves(K, D), None] if weights.gguf else (),
    )
    o_proj = weights.linear([(f"{attn}.o_proj", C)], H * D, bias=config.attention_bias)
    gate_up_proj = weights.linear([(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)], C, bias=config.mlp_bias)
    down_proj = weights.linear([(f"{mlp}.down_proj", C)], inner, bias=config.mlp_bias)
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
        rope = weights.rope(config.rope)
        spec = AttentionSpec(config.num_key_value_heads, config.head_dim, config.head_dim**-0.5, rope)
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
        return {"model.layers.{}.self_attn.rotary_emb.inv_freq": None}
    return llama_names(
        {
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        },
        biases=True,
    )
