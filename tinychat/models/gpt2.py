"""GPT-2: layer norm with bias before each sublayer, learned positions, biases everywhere, a tied head.

Its checkpoints hold matrices as [in, out] (OpenAI's "Conv1D"), queries, keys and values as one; llama.cpp's converter
turns them around. Shapes: B batch (always 1 here, so left out), T new tokens, S cached + new, H heads, D head size,
C width, I inner width, V vocabulary. Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinychat.errors import UnsupportedModel
from tinychat.kernels import Kernels
from tinychat.models.base import Weights, check_numbers
from tinychat.models.cache import AttentionSpec, Cache
from tinychat.models.probe import CLOSED, Probe

MODEL_TYPES = ("gpt2",)
FAMILY = "GPT-2"

_REFUSED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
"""Switches of config.json that no public GPT-2 turns: the only value each may have."""


@dataclass(frozen=True, slots=True)
class Config:
    """Fields are the keys of config.json."""

    n_layer: int
    n_head: int
    n_embd: int
    n_inner: int
    n_positions: int
    vocab_size: int
    layer_norm_epsilon: float

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.n_embd % self.n_head:
            raise ValueError(f"a width of {self.n_embd} can't be cut into {self.n_head} heads")

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return self.n_layer

    @property
    def positions(self) -> int:
        """Longest sequence: the table of positions ends there."""
        return self.n_positions

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Config:
        """Read a config.json.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        activation = config.get("activation_function", "gelu_new")
        if activation not in ("gelu_new", "gelu_pytorch_tanh"):
            raise UnsupportedModel(f"{source} asks for the activation {activation!r}; GPT-2 here has gelu_new.")
        for key, value in _REFUSED.items():
            if config.get(key, value) != value:
                raise UnsupportedModel(f"{source} sets {key} to {config[key]}, which tinychat doesn't do.")
        return cls(
            n_layer=config["n_layer"],
            n_head=config["n_head"],
            n_embd=config["n_embd"],
            n_inner=config.get("n_inner") or 4 * config["n_embd"],
            n_positions=config.get("n_positions") or config["n_ctx"],
            vocab_size=config["vocab_size"],
            layer_norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Read a GGUF header: its keys and values, and its tensors' names (which GPT-2 doesn't need)."""
        del names, source
        return cls(
            n_layer=metadata["gpt2.block_count"],
            n_head=metadata["gpt2.attention.head_count"],
            n_embd=metadata["gpt2.embedding_length"],
            n_inner=metadata["gpt2.feed_forward_length"],
            n_positions=metadata["gpt2.context_length"],
            vocab_size=metadata.get("gpt2.vocab_size") or len(metadata["tokenizer.ggml.tokens"]),
            layer_norm_epsilon=metadata["gpt2.attention.layer_norm_epsilon"],
        )


class Attention:
    """Causal self-attention with as many heads of keys and values as of queries."""

    def __init__(self, config: Config, weights: Weights, name: str) -> None:
        """Take the projections under `name`."""
        width = config.n_embd
        self.heads = config.n_head
        turned = not weights.gguf
        self.c_attn = weights.linear([(f"{name}.c_attn", 3 * width)], width, bias=True, transposed=turned)
        self.c_proj = weights.linear([(f"{name}.c_proj", width)], width, bias=True, transposed=turned)

    def forward(self, x: torch.Tensor, cache: Cache, probe: Probe, name: str) -> torch.Tensor:
        """Return what attention adds to the residual stream, [T, C], for x [T, C]."""
        qkv = self.c_attn.forward(x)  # [T, 3 C]
        if probe:
            for tap, part in zip(("q", "k", "v"), qkv.chunk(3, dim=-1), strict=True):
                probe(f"{name}.attn.hook_{tap}", part.unflatten(-1, (self.heads, -1)))
        mix = cache.append_attend(qkv)  # [T, C]
        if probe:
            probe(f"{name}.attn.hook_z", mix.unflatten(-1, (self.heads, -1)))
        return self.c_proj.forward(mix)


class MLP:
    """proj(gelu(fc(x)))."""

    def __init__(self, config: Config, weights: Weights, name: str, kernels: Kernels) -> None:
        """Take the projections under `name`."""
        inner, width, turned = config.n_inner, config.n_embd, not weights.gguf
        self.kernels = kernels
        self.c_fc = weights.linear([(f"{name}.c_fc", inner)], width, bias=True, transposed=turned)
        self.c_proj = weights.linear([(f"{name}.c_proj", width)], inner, bias=True, transposed=turned)

    def forward(self, x: torch.Tensor, probe: Probe, name: str) -> torch.Tensor:
        """Return what the MLP adds to the residual stream, [T, C], for x [T, C]."""
        pre = self.c_fc.forward(x)  # [T, I]
        inner = self.kernels.gelu_tanh(pre)
        if probe:
            probe(f"{name}.mlp.hook_pre", pre)
            probe(f"{name}.mlp.hook_post", inner)
        return self.c_proj.forward(inner)


class Block:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: Config, weights: Weights, layer: int, kernels: Kernels) -> None:
        """Take the parameters of one layer."""
        name, width = f"h.{layer}", config.n_embd
        self.name = f"blocks.{layer}"
        self.kernels = kernels
        self.eps = config.layer_norm_epsilon
        self.ln_1 = weights.norm(f"{name}.ln_1.weight", width), weights.norm(f"{name}.ln_1.bias", width)
        self.attn = Attention(config, weights, f"{name}.attn")
        self.ln_2 = weights.norm(f"{name}.ln_2.weight", width), weights.norm(f"{name}.ln_2.bias", width)
        self.mlp = MLP(config, weights, f"{name}.mlp", kernels)

    def forward(self, residual: torch.Tensor, delta: torch.Tensor | None, cache: Cache, probe: Probe) -> torch.Tensor:
        """Run the block.

        Args:
            residual: The stream, fp32 [T, C]; changed in place.
            delta: What the block before adds to it and has not added yet, [T, C]: the norm adds it on its way.
            cache: Of this layer.
            probe: The taps.

        Returns:
            What this block's MLP adds, [T, C]; the next norm adds it.
        """
        norm = self.kernels.add_layer_norm
        x = norm(residual, delta, *self.ln_1, self.eps, self.attn.c_attn.activations)
        if probe:
            probe(f"{self.name}.hook_resid_pre", residual)
            probe(f"{self.name}.ln1.hook_normalized", x)
        attn_out = self.attn.forward(x, cache, probe, self.name)
        x = norm(residual, attn_out, *self.ln_2, self.eps, self.mlp.c_fc.activations)
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
            weights: Tensors under OpenAI's names (Hugging Face's, without their "transformer." in front).
            kernels: The primitives: `kernels.plain` or `kernels.fused`.
        """
        self.config = config
        self.kernels = kernels
        self.device = weights.device
        V, C = config.vocab_size, config.n_embd
        size = C // config.n_head
        self.attention = (AttentionSpec(config.n_head, size, size**-0.5),) * config.n_layer
        own = weights.has("lm_head.weight")
        if own and not weights.gguf:
            weights.ignore("lm_head.weight", "GPT-2's head is tied to its embedding")
        tied = not (own and weights.gguf)
        self.lm_head = weights.linear([("wte" if tied else "lm_head", V)], C, role="head", tied=tied)
        self.wte = weights.embedding("wte.weight", V, C, self.lm_head if tied else None)
        self.wpe = weights.embedding("wpe.weight", config.n_positions, C)
        self.h = [Block(config, weights, layer, kernels) for layer in range(config.n_layer)]
        self.ln_f = weights.norm("ln_f.weight", C), weights.norm("ln_f.bias", C)

    def forward(
        self, ids: torch.Tensor, caches: Sequence[Cache], probe: Probe = CLOSED, *, every_position: bool = False
    ) -> torch.Tensor:
        """Append ids [T] to the caches; return logits, fp32: [1, V] of the last position, or [T, V] of every one."""
        start = caches[0].length
        embedded = self.wte.forward(ids)  # [T, C]
        positions = self.wpe.forward(torch.arange(start, start + len(ids), device=ids.device))
        if probe:
            probe("hook_embed", embedded)
            probe("hook_pos_embed", positions)
        residual = embedded + positions
        delta = None
        for block, cache in zip(self.h, caches, strict=True):
            delta = block.forward(residual, delta, cache, probe)
        if not every_position:
            residual, delta = residual[-1:], None if delta is None else delta[-1:]
        eps = self.config.layer_norm_epsilon
        x = self.kernels.add_layer_norm(residual, delta, *self.ln_f, eps, self.lm_head.activations)
        if probe:
            probe("ln_final.hook_normalized", x)
        return self.lm_head.forward(x).float()


def names(*, gguf: bool) -> dict[str, str | None]:
    """Return the file's names for the parameters that aren't the model's own.

    Args:
        gguf: Of llama.cpp's converter; else those of Hugging Face checkpoints.
    """
    norms = {"ln_1": "attn_norm", "ln_2": "ffn_norm"}
    matrices = {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    found: dict[str, str | None] = {}
    if gguf:
        found |= {"token_embd.weight": "wte.weight", "position_embd.weight": "wpe.weight"}
        found |= {"output.weight": "lm_head.weight"}
    for kind in ("weight", "bias"):
        found["output_norm." + kind if gguf else "transformer.ln_f." + kind] = "ln_f." + kind
        for ours, theirs in (norms | matrices).items():
            name = f"blk.{{}}.{theirs}.{kind}" if gguf else f"transformer.h.{{}}.{ours}.{kind}"
            found[name] = f"h.{{}}.{ours}.{kind}"
    if not gguf:
        found |= {"transformer.wte.weight": "wte.weight", "transformer.wpe.weight": "wpe.weight"}
        for prefix in ("", "transformer."):
            # Masks that older checkpoints store among their weights.
            found |= {f"{prefix}h.{{}}.attn.bias": None, f"{prefix}h.{{}}.attn.masked_bias": None}
    return found
