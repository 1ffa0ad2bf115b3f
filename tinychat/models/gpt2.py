"""GPT-2: layer norm with bias before each sublayer, learned positions, biases everywhere, a tied head.

Its checkpoints hold matrices as [in, out] (OpenAI's "Conv1D"), queries, keys and values as one; llama.cpp's converter
turns them around. Shapes as in layers.py. Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinychat.errors import UnsupportedModel
from tinychat.kernels import Kernels
from tinychat.models.base import Weights, check_numbers
from tinychat.models.cache import AttentionSpec
from tinychat.models.layer_norm import MLP, LayerNormBlock, LayerNormDecoder
from tinychat.models.layers import Attention
from tinychat.models.linear import Linear
from tinychat.models.probe import Probe

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


def block(config: Config, weights: Weights, layer: int, spec: AttentionSpec, kernels: Kernels) -> LayerNormBlock:
    """Take the parameters of one layer."""
    name, width, inner, turned = f"h.{layer}", config.n_embd, config.n_inner, not weights.gguf

    def matrix(part: str, rows: int, columns: int) -> Linear:
        return weights.linear([(f"{name}.{part}", rows)], columns, bias=True, transposed=turned)

    return LayerNormBlock(
        layer,
        (weights.layer_norm(f"{name}.ln_1", width), weights.layer_norm(f"{name}.ln_2", width)),
        Attention(
            matrix("attn.c_attn", 3 * width, width), matrix("attn.c_proj", width, width), config.n_head, spec, kernels
        ),
        MLP(matrix("mlp.c_fc", inner, width), matrix("mlp.c_proj", width, inner), kernels.gelu_tanh),
        config.layer_norm_epsilon,
        kernels,
    )


class Model(LayerNormDecoder):
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
        self.eps = config.layer_norm_epsilon
        V, C = config.vocab_size, config.n_embd
        size = C // config.n_head
        self.attention = (AttentionSpec(config.n_head, size, size**-0.5),) * config.n_layer
        own = weights.has("lm_head.weight")
        if own and not weights.gguf:
            weights.ignore("lm_head.weight", "GPT-2's head is tied to its embedding")
        tied = not (own and weights.gguf)
        self.lm_head = weights.linear([("wte" if tied else "lm_head", V)], C, role="head", tied=tied)
        self.embed_tokens = weights.embedding("wte.weight", V, C, self.lm_head if tied else None)
        self.wpe = weights.embedding("wpe.weight", config.n_positions, C)
        self.layers = [block(config, weights, n, spec, kernels) for n, spec in enumerate(self.attention)]
        self.norm, self.bias = weights.layer_norm("ln_f", C)

    def embed(self, ids: torch.Tensor, start: int, probe: Probe) -> torch.Tensor:
        """Return the sum of the tokens' and the positions' embeddings, fp32 [T, C]."""
        embedded = super().embed(ids, start, probe)
        positions = self.wpe.forward(torch.arange(start, start + len(ids), device=ids.device))
        if probe:
            probe("hook_pos_embed", positions)
        return embedded + positions


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
