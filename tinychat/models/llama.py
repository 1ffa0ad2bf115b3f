"""Llama, and what shares its shape (SmolLM2, TinyLlama): RMS norm before each sublayer, rotary positions, grouped-query
attention, a gated MLP, no biases unless the config asks for them.

Shapes: B batch (always 1 here, so left out), T new tokens, S cached + new, H query heads, K kv heads, D head size,
C width, I inner width, V vocabulary. Touvron et al. 2023, arXiv:2302.13971.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinychat.errors import UnsupportedModel
from tinychat.kernels import Kernels
from tinychat.models.base import Weights, check_numbers
from tinychat.models.cache import SlabCache
from tinychat.models.probe import CLOSED, Probe
from tinychat.models.rope import Rotary, inverse_frequencies, rope_theta

MODEL_TYPES = ("llama",)
FAMILY = "Llama"


@dataclass(frozen=True, slots=True)
class Config:
    """Fields are the keys of config.json."""

    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    hidden_size: int
    intermediate_size: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"{self.num_attention_heads} query heads can't share {self.num_key_value_heads} kv heads")

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return self.num_hidden_layers

    @property
    def positions(self) -> int:
        """Longest sequence the model was made for."""
        return self.max_position_embeddings

    @property
    def cache_values(self) -> int:
        """Numbers that one token leaves in all caches together."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Config:
        """Read a config.json.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        if config.get("hidden_act", "silu") != "silu":
            raise UnsupportedModel(f"{source} asks for the activation {config['hidden_act']!r}; Llama here has silu.")
        heads = config["num_attention_heads"]
        return cls(
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocab_size=config["vocab_size"],
            max_position_embeddings=config.get("max_position_embeddings", 2048),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=rope_theta(config, 10_000.0, source),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Read a GGUF header.

        Args:
            metadata: Its keys and values.
            names: Its tensors' names, which tell what the keys don't: a tied head, biases.
            source: For error sentences.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        # llama.cpp takes a factor without a type for linear scaling, and so does the one key of older files.
        factor = metadata.get("llama.rope.scaling.factor") or metadata.get("llama.rope.scale_linear") or 1.0
        scaling = metadata.get("llama.rope.scaling.type", "none" if factor == 1.0 else "linear")
        if scaling != "none" or "rope_freqs.weight" in names:
            raise UnsupportedModel(
                f"{source} asks for scaled RoPE; tinychat knows plain RoPE only.", "Choose a model without it."
            )
        if metadata.get("llama.expert_count", 0):
            raise UnsupportedModel(f"{source} is a mixture of experts, which tinychat doesn't run.")
        heads = metadata["llama.attention.head_count"]
        width = metadata["llama.embedding_length"]
        size = metadata.get("llama.attention.key_length", width // heads)
        if metadata.get("llama.rope.dimension_count", size) != size:
            raise UnsupportedModel(f"{source} rotates only a part of each head (llama.rope.dimension_count).")
        return cls(
            num_hidden_layers=metadata["llama.block_count"],
            num_attention_heads=heads,
            num_key_value_heads=metadata.get("llama.attention.head_count_kv", heads),
            hidden_size=width,
            intermediate_size=metadata["llama.feed_forward_length"],
            head_dim=size,
            vocab_size=metadata.get("llama.vocab_size") or len(metadata["tokenizer.ggml.tokens"]),
            max_position_embeddings=metadata["llama.context_length"],
            rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
            rope_theta=metadata.get("llama.rope.freq_base", 10_000.0),
            tie_word_embeddings="output.weight" not in names,
            attention_bias="blk.0.attn_q.bias" in names,
            mlp_bias="blk.0.ffn_gate.bias" in names,
        )


class Attention:
    """Causal self-attention; H query heads share K heads of keys and values."""

    def __init__(self, config: Config, weights: Weights, name: str) -> None:
        """Take the projections under `name`."""
        H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.sizes = (H * D, K * D, K * D)
        self.heads = (H, K, K)
        self.qkv_proj = weights.linear(
            [(f"{name}.q_proj", H * D), (f"{name}.k_proj", K * D), (f"{name}.v_proj", K * D)],
            config.hidden_size,
            bias=config.attention_bias,
            orders=[_half_order(H, D), _half_order(K, D), None] if weights.gguf else (),
        )
        self.o_proj = weights.linear([(f"{name}.o_proj", config.hidden_size)], H * D, bias=config.attention_bias)

    def forward(self, x: torch.Tensor, cache: SlabCache, probe: Probe, name: str) -> torch.Tensor:
        """Return what attention adds to the residual stream, [T, C], for x [T, C]."""
        qkv = self.qkv_proj.forward(x)  # [T, (H + 2 K) D]
        if probe:
            parts = zip(("q", "k", "v"), qkv.split(self.sizes, dim=-1), self.heads, strict=True)
            for tap, part, heads in parts:
                probe(f"{name}.attn.hook_{tap}", part.unflatten(-1, (heads, -1)))
        mix = cache.append_attend(qkv)  # [T, H D]
        if probe:
            probe(f"{name}.attn.hook_z", mix.unflatten(-1, (self.heads[0], -1)))
        return self.o_proj.forward(mix)


class MLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: Config, weights: Weights, name: str, kernels: Kernels) -> None:
        """Take the projections under `name`."""
        inner, width = config.intermediate_size, config.hidden_size
        self.kernels = kernels
        self.gate_up_proj = weights.linear(
            [(f"{name}.gate_proj", inner), (f"{name}.up_proj", inner)], width, bias=config.mlp_bias
        )
        self.down_proj = weights.linear([(f"{name}.down_proj", width)], inner, bias=config.mlp_bias)

    def forward(self, x: torch.Tensor, probe: Probe, name: str) -> torch.Tensor:
        """Return what the MLP adds to the residual stream, [T, C], for x [T, C]."""
        gate_up = self.gate_up_proj.forward(x)  # [T, 2 I]
        inner = self.kernels.silu_mul(gate_up)  # [T, I]
        if probe:
            gate, up = gate_up.chunk(2, dim=-1)
            probe(f"{name}.mlp.hook_pre", gate)
            probe(f"{name}.mlp.hook_pre_linear", up)
            probe(f"{name}.mlp.hook_post", inner)
        return self.down_proj.forward(inner)


class Block:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: Config, weights: Weights, layer: int, kernels: Kernels) -> None:
        """Take the parameters of one layer."""
        name = f"model.layers.{layer}"
        self.name = f"blocks.{layer}"
        self.kernels = kernels
        self.eps = config.rms_norm_eps
        self.input_layernorm = weights.norm(f"{name}.input_layernorm.weight", config.hidden_size)
        self.self_attn = Attention(config, weights, f"{name}.self_attn")
        self.post_attention_layernorm = weights.norm(f"{name}.post_attention_layernorm.weight", config.hidden_size)
        self.mlp = MLP(config, weights, f"{name}.mlp", kernels)

    def forward(
        self, residual: torch.Tensor, delta: torch.Tensor | None, cache: SlabCache, probe: Probe
    ) -> torch.Tensor:
        """Run the block.

        Args:
            residual: The stream, fp32 [T, C]; changed in place.
            delta: What the block before adds to it and has not added yet, [T, C]: the norm adds it on its way.
            cache: Of this layer.
            probe: The taps.

        Returns:
            What this block's MLP adds, [T, C]; the next norm adds it.
        """
        norm = self.kernels.add_rms_norm
        x = norm(residual, delta, self.input_layernorm, self.eps, self.self_attn.qkv_proj.activations)
        if probe:
            probe(f"{self.name}.hook_resid_pre", residual)
            probe(f"{self.name}.ln1.hook_normalized", x)
        attn_out = self.self_attn.forward(x, cache, probe, self.name)
        x = norm(residual, attn_out, self.post_attention_layernorm, self.eps, self.mlp.gate_up_proj.activations)
        if probe:
            probe(f"{self.name}.hook_attn_out", attn_out)
            probe(f"{self.name}.hook_resid_mid", residual)
            probe(f"{self.name}.ln2.hook_normalized", x)
        mlp_out = self.mlp.forward(x, probe, self.name)
        if probe:
            probe(f"{self.name}.hook_mlp_out", mlp_out)
            probe(f"{self.name}.hook_resid_post", residual + mlp_out)
        return mlp_out


class Model:
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
        V, C = config.vocab_size, config.hidden_size
        tied = config.tie_word_embeddings
        if tied and weights.has("lm_head.weight"):
            weights.ignore("lm_head.weight", "config.json ties the head to the embedding")
        head = "model.embed_tokens" if tied else "lm_head"
        self.lm_head = weights.linear([(head, V)], C, role="head", tied=tied)
        self.embed_tokens = weights.embedding("model.embed_tokens.weight", V, C, self.lm_head if tied else None)
        self.layers = [Block(config, weights, layer, kernels) for layer in range(config.num_hidden_layers)]
        self.norm = weights.norm("model.norm.weight", C)

    def make_caches(self, capacity: int, dtype: torch.dtype) -> list[SlabCache]:
        """Return an empty cache a layer, each with room for `capacity` tokens."""
        c = self.config
        rotary = Rotary(inverse_frequencies(c.head_dim, c.rope_theta), capacity)
        return [
            SlabCache(
                c.num_key_value_heads,
                capacity,
                c.head_dim,
                dtype,
                self.device,
                kernels=self.kernels,
                rotary=rotary,
                scale=c.head_dim**-0.5,
            )
            for _ in self.layers
        ]

    def forward(
        self, ids: torch.Tensor, caches: Sequence[SlabCache], probe: Probe = CLOSED, *, every_position: bool = False
    ) -> torch.Tensor:
        """Append ids [T] to the caches; return logits, fp32: [1, V] of the last position, or [T, V] of every one."""
        residual = self.embed_tokens.forward(ids)  # [T, C]
        if probe:
            probe("hook_embed", residual)
        delta = None
        for block, cache in zip(self.layers, caches, strict=True):
            delta = block.forward(residual, delta, cache, probe)
        if not every_position:
            residual, delta = residual[-1:], None if delta is None else delta[-1:]
        x = self.kernels.add_rms_norm(residual, delta, self.norm, self.config.rms_norm_eps, self.lm_head.activations)
        if probe:
            probe("ln_final.hook_normalized", x)
        return self.lm_head.forward(x).float()


def names(*, gguf: bool) -> dict[str, str | None]:
    """Return the file's names for the parameters, layer by layer, that aren't the model's own.

    Args:
        gguf: Of llama.cpp's converter; else those of Hugging Face checkpoints.
    """
    if not gguf:
        return {"model.layers.{}.self_attn.rotary_emb.inv_freq": None}
    layer = {
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
    found: dict[str, str | None] = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    for theirs, ours in layer.items():
        for kind in ("weight", "bias"):
            found[f"blk.{{}}.{theirs}.{kind}"] = f"model.layers.{{}}.{ours}.{kind}"
    return found


def _half_order(heads: int, size: int) -> torch.Tensor:
    """Return the order that undoes llama.cpp's permutation of query and key rows.

    Its converter puts component i of a head beside component i + D/2, for a rotation of neighbours.
    """
    return torch.arange(heads * size).view(heads, size // 2, 2).transpose(1, 2).flatten()
