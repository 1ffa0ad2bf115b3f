"""Decoders of Llama's shape: an RMS norm before each sublayer, grouped-query attention, a gated MLP with SiLU.

Shapes as in layers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinychat.kernels import Kernels
from tinychat.models.base import Weights, llama_names, neighbours_to_halves
from tinychat.models.cache import AttentionSpec
from tinychat.models.config import DecoderConfig
from tinychat.models.layers import Attention, Decoder, GatedMLP, HeadNorms, PreNormBlock
from tinychat.models.rope import Rope


class PreNormDecoder(Decoder):
    """The decoder; a family says what sets its own apart."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        kernels: Kernels,
        attention: Sequence[AttentionSpec],
        *,
        qkv_bias: bool = False,
        o_bias: bool = False,
        mlp_bias: bool = False,
        head_norms: bool = False,
        permuted: bool = False,
        joined: bool = False,
    ) -> None:
        """Take every parameter from `weights`.

        Args:
            config: The numbers.
            weights: Tensors under Hugging Face's names.
            kernels: The primitives: `kernels.plain` or `kernels.fused`.
            attention: How each layer attends.
            qkv_bias: Whether queries, keys and values have biases.
            o_bias: Whether the projection of the mix has one.
            mlp_bias: Whether the MLP's projections have.
            head_norms: Whether each query and key head has a norm of its own.
            permuted: Whether the file holds queries and keys for a rotation of neighbours.
            joined: Whether it holds queries, keys and values as one matrix, and gate and up as another.
        """
        self.config = config
        self.kernels = kernels
        self.device = weights.device
        self.eps = config.rms_norm_eps
        self.attention = tuple(attention)
        self.embed_tokens, self.lm_head = weights.ends(
            config.vocab_size, config.hidden_size, tied=config.tie_word_embeddings
        )
        H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        C, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        orders = [neighbours_to_halves(H, D), neighbours_to_halves(K, D), None] if permuted else []

        def block(layer: int, spec: AttentionSpec) -> PreNormBlock:
            name = f"model.layers.{layer}"
            attn, mlp = f"{name}.self_attn", f"{name}.mlp"
            qkv = [(f"{attn}.q_proj", H * D), (f"{attn}.k_proj", K * D), (f"{attn}.v_proj", K * D)]
            gate_up = [(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)]
            if joined:
                qkv = [(f"{attn}.qkv_proj", (H + 2 * K) * D)]
                gate_up = [(f"{mlp}.gate_up_proj", 2 * inner)]
            qkv_proj = weights.linear(qkv, C, bias=qkv_bias, orders=orders)
            o_proj = weights.linear([(f"{attn}.o_proj", C)], H * D, bias=o_bias)
            gate_up_proj = weights.linear(gate_up, C, bias=mlp_bias)
            down_proj = weights.linear([(f"{mlp}.down_proj", C)], inner, bias=mlp_bias)
            norms = None
            if head_norms:
                q_norm, k_norm = (weights.norm(f"{attn}.{norm}.weight", D) for norm in ("q_norm", "k_norm"))
                norms = HeadNorms(q_norm, k_norm, eps)
            return PreNormBlock(
                layer,
                (
                    weights.norm(f"{name}.input_layernorm.weight", C),
                    weights.norm(f"{name}.post_attention_layernorm.weight", C),
                ),
                Attention(qkv_proj, o_proj, H, spec, kernels, norms),
                GatedMLP(gate_up_proj, down_proj, kernels.silu_mul),
                eps,
                kernels,
            )

        self.layers = [block(layer, spec) for layer, spec in enumerate(self.attention)]
        self.norm = weights.norm("model.norm.weight", C)


def specs(
    config: DecoderConfig, ropes: Sequence[Rope | None], windows: Sequence[int | None] | None = None
) -> list[AttentionSpec]:
    """Return how each layer attends, given its rotation and, where some have one, its window."""
    K, D = config.num_key_value_heads, config.head_dim
    return [
        AttentionSpec(K, D, D**-0.5, rope, window)
        for rope, window in zip(ropes, windows or [None] * len(ropes), strict=True)
    ]


def names(gguf: bool, extra: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Return the file's names for the parameters, layer by layer, that aren't the model's own.

    Args:
        gguf: Of llama.cpp's converter; else those of Hugging Face checkpoints.
        extra: llama.cpp's names of what the family has besides, as of `llama_names`.
    """
    if not gguf:
        return {"model.layers.{}.self_attn.rotary_emb.inv_freq": None}
    parts = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    # Files of 2023 keep the plain angles, layer by layer; everyone computes them.
    return llama_names(parts | dict(extra or {}), biases=True) | {"blk.{}.attn_rot_embd.weight": None}
