"""What Gemma 2 and Gemma 3 have in common: norms on both sides of each sublayer, layers with and without a window, an
embedding scaled by the square root of its width, a final cap.

Their norms multiply by 1 + weight; llama.cpp's converter adds the 1. Shapes as in layers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tinychat.errors import UnsupportedModel
from tinychat.kernels import Kernels
from tinychat.models.base import Weights
from tinychat.models.cache import AttentionSpec, Cache
from tinychat.models.config import DecoderConfig
from tinychat.models.layers import Attention, Decoder, GatedMLP, HeadNorms
from tinychat.models.probe import Probe

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"
NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""llama.cpp's name of each part of a layer -> Hugging Face's."""


@dataclass(frozen=True, slots=True)
class GemmaConfig(DecoderConfig):
    """Fields are the keys of config.json."""

    query_pre_attn_scalar: float
    """Scores are multiplied by its -1/2 power."""
    layer_types: tuple[str, ...]
    """Of each layer: sliding_attention or full_attention."""
    sliding_window: int
    """Positions that a token sees in sliding layers."""
    final_logit_softcapping: float | None

    def __post_init__(self) -> None:
        DecoderConfig.__post_init__(self)
        if len(self.layer_types) != self.num_hidden_layers or not set(self.layer_types) <= {SLIDING, FULL}:
            raise ValueError(f"layer_types doesn't say of each of {self.num_hidden_layers} layers whether it slides")

    def window(self, layer_type: str) -> int | None:
        """Return the window of layers of this type."""
        return self.sliding_window if layer_type == SLIDING else None


def json_extras(config: Mapping[str, Any], source: str, *, every: int, final_cap: float | None) -> dict[str, Any]:
    """Return the fields that `GemmaConfig` adds, from a config.json.

    Args:
        config: Its keys and values.
        source: For error sentences.
        every: Which layers see everything where it doesn't say: each so many-th.
        final_cap: The cap of the logits where it doesn't say.

    Raises:
        UnsupportedModel: It asks for something tinychat doesn't do.
    """
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModel(f"{source} lets tokens see later ones (use_bidirectional_attention): it writes no text.")
    return {
        "query_pre_attn_scalar": config.get("query_pre_attn_scalar", 256),
        "layer_types": tuple(config.get("layer_types") or pattern(config["num_hidden_layers"], every)),
        "sliding_window": config.get("sliding_window", 4096),
        "final_logit_softcapping": config.get("final_logit_softcapping", final_cap),
    }


def pattern(layers: int, every: int) -> tuple[str, ...]:
    """Return the types of layers of which each `every`-th sees everything."""
    return tuple(SLIDING if (layer + 1) % every else FULL for layer in range(layers))


class SandwichBlock:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))), with RMS norms."""

    def __init__(
        self,
        layer: int,
        norms: Sequence[torch.Tensor],
        self_attn: Attention,
        mlp: GatedMLP,
        eps: float,
        kernels: Kernels,
    ) -> None:
        """Take the sublayers, and the norms before and behind attention, before and behind the MLP: fp32 [C] each."""
        self.name = f"blocks.{layer}"
        self.input_layernorm, self.post_attention_layernorm = norms[:2]
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = norms[2:]
        self.self_attn = self_attn
        self.mlp = mlp
        self.eps = eps
        self.kernels = kernels

    def forward(self, residual: torch.Tensor, delta: torch.Tensor | None, cache: Cache, probe: Probe) -> torch.Tensor:
        """Run the block; arguments and result as of `layers.PreNormBlock.forward`."""
        norm, norm_behind = self.kernels.add_rms_norm, self.kernels.rms_norm
        x = norm(residual, delta, self.input_layernorm, self.eps, self.self_attn.activations)
        if probe:
            probe(f"{self.name}.hook_resid_pre", residual)
            probe(f"{self.name}.ln1.hook_normalized", x)
        attn_out = self.self_attn.forward(x, cache, probe, self.name)
        attn_out = norm_behind(attn_out, self.post_attention_layernorm, self.eps, attn_out.dtype)
        if probe:
            probe(f"{self.name}.ln1_post.hook_normalized", attn_out)
            probe(f"{self.name}.hook_attn_out", attn_out)
        x = norm(residual, attn_out, self.pre_feedforward_layernorm, self.eps, self.mlp.activations)
        if probe:
            probe(f"{self.name}.hook_resid_mid", residual)
            probe(f"{self.name}.ln2.hook_normalized", x)
        mlp_out = self.mlp.forward(x, probe, self.name)
        mlp_out = norm_behind(mlp_out, self.post_feedforward_layernorm, self.eps, mlp_out.dtype)
        if probe:
            probe(f"{self.name}.ln2_post.hook_normalized", mlp_out)
            probe(f"{self.name}.hook_mlp_out", mlp_out)
            probe(f"{self.name}.hook_resid_post", lambda: residual + mlp_out)
        return mlp_out


def block(
    config: GemmaConfig, weights: Weights, layer: int, spec: AttentionSpec, kernels: Kernels, *, norm_heads: bool
) -> SandwichBlock:
    """Take the parameters of one layer; `norm_heads`: queries and keys have norms of their own."""
    name, plus = f"model.layers.{layer}", 0.0 if weights.gguf else 1.0
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    C, inner = config.hidden_size, config.intermediate_size
    attn, mlp = f"{name}.self_attn", f"{name}.mlp"
    qkv_proj = weights.linear([(f"{attn}.q_proj", H * D), (f"{attn}.k_proj", K * D), (f"{attn}.v_proj", K * D)], C)
    o_proj = weights.linear([(f"{attn}.o_proj", C)], H * D)
    gate_up_proj = weights.linear([(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)], C)
    down_proj = weights.linear([(f"{mlp}.down_proj", C)], inner)
    norms = [weights.norm(f"{name}.{norm}.weight", C, plus) for key, norm in NAMES.items() if key.endswith("norm")]
    of_heads = None
    if norm_heads:
        q_norm, k_norm = (weights.norm(f"{attn}.{norm}.weight", D, plus) for norm in ("q_norm", "k_norm"))
        of_heads = HeadNorms(q_norm, k_norm, config.rms_norm_eps)
    return SandwichBlock(
        layer,
        norms,
        Attention(qkv_proj, o_proj, H, spec, kernels, of_heads),
        GatedMLP(gate_up_proj, down_proj, kernels.gelu_tanh_mul),
        config.rms_norm_eps,
        kernels,
    )


class GemmaDecoder(Decoder):
    """The decoder; an architecture says how each layer attends."""

    def __init__(
        self,
        config: GemmaConfig,
        weights: Weights,
        kernels: Kernels,
        attention: Mapping[str, AttentionSpec],
        *,
        norm_heads: bool,
    ) -> None:
        """Take every parameter from `weights`.

        Args:
            config: The numbers.
            weights: Tensors under Hugging Face's names.
            kernels: The primitives: `kernels.plain` or `kernels.fused`.
            attention: Type of a layer -> how it attends.
            norm_heads: Whether queries and keys have norms of their own.
        """
        self.config = config
        self.kernels = kernels
        self.device = weights.device
        self.eps = config.rms_norm_eps
        self.attention = tuple(attention[layer_type] for layer_type in config.layer_types)
        self.embed_tokens, self.lm_head = weights.ends(
            config.vocab_size, config.hidden_size, tied=config.tie_word_embeddings
        )
        self.layers = [
            block(config, weights, n, spec, kernels, norm_heads=norm_heads) for n, spec in enumerate(self.attention)
        ]
        self.norm = weights.norm("model.norm.weight", config.hidden_size, 0.0 if weights.gguf else 1.0)

    def embed(self, ids: torch.Tensor, start: int, probe: Probe) -> torch.Tensor:
        """Return the tokens' embeddings times sqrt(C), fp32 [T, C].

        The models were trained with the factor rounded to the dtype of the table: 55.5 in bf16 for the root of 3072.
        """
        del start
        factor = torch.tensor(self.config.hidden_size**0.5).to(self.embed_tokens.dtype).float()
        embedded = self.embed_tokens.forward(ids) * factor
        if probe:
            probe("hook_embed", embedded)
        return embedded

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, fp32 [T, V], for normed x [T, C]."""
        logits = super().logits(x)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else self.kernels.softcap(logits, cap)
