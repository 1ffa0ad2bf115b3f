"""GPT-NeoX and Pythia: layer norms with bias, sublayers side by side, a rotation of a part of each head.

Checkpoints keep queries, keys and values as one matrix, head by head: [H, 3, D] rows; llama.cpp's converter puts them
in three blocks. Shapes as in layers.py. Black et al. 2022, arXiv:2204.06745; Biderman et al. 2023, arXiv:2304.01373.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tinychat.errors import UnsupportedModel
from tinychat.kernels import Kernels
from tinychat.models.base import Weights, check_numbers
from tinychat.models.cache import AttentionSpec
from tinychat.models.layer_norm import MLP, LayerNormBlock, LayerNormDecoder
from tinychat.models.layers import Attention
from tinychat.models.rope_settings import RopeSettings

MODEL_TYPES = ("gpt_neox", "gptneox")
FAMILY = "GPT-NeoX"

_TANH: Final = ("gelu_fast", "gelu_new", "gelu_pytorch_tanh")
"""Names that config.json has for GELU's tanh form."""


@dataclass(frozen=True, slots=True)
class Config:
    """Fields are the keys of config.json."""

    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    layer_norm_eps: float
    rope: RopeSettings
    hidden_act: str = "gelu"
    use_parallel_residual: bool = True
    attention_bias: bool = True
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"a width of {self.hidden_size} can't be cut into {self.num_attention_heads} heads")

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return self.num_hidden_layers

    @property
    def positions(self) -> int:
        """Longest sequence the model was made for."""
        return self.rope.positions

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Config:
        """Read a config.json.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        activation = config.get("hidden_act", "gelu")
        if activation not in ("gelu", *_TANH):
            raise UnsupportedModel(f"{source} asks for the activation {activation!r}; GPT-NeoX here has gelu.")
        width, heads = config["hidden_size"], config["num_attention_heads"]
        own_keys = {
            "rope_theta": config.get("rotary_emb_base"),
            "partial_rotary_factor": config.get("rotary_pct", 0.25),
        }
        return cls(
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            hidden_size=width,
            intermediate_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
            max_position_embeddings=config.get("max_position_embeddings", 2048),
            layer_norm_eps=config.get("layer_norm_eps", 1e-5),
            rope=RopeSettings.from_json({**config, **own_keys}, source, size=width // heads),
            hidden_act=activation,
            use_parallel_residual=bool(config.get("use_parallel_residual", True)),
            attention_bias=bool(config.get("attention_bias", True)),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Read a GGUF header: its keys and values, and its tensors' names.

        It doesn't say which GELU the MLP has: exact as in every Pythia, though llama.cpp itself computes the tanh form.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        width, heads = metadata["gptneox.embedding_length"], metadata["gptneox.attention.head_count"]
        return cls(
            num_hidden_layers=metadata["gptneox.block_count"],
            num_attention_heads=heads,
            hidden_size=width,
            intermediate_size=metadata["gptneox.feed_forward_length"],
            vocab_size=metadata.get("gptneox.vocab_size") or len(metadata["tokenizer.ggml.tokens"]),
            max_position_embeddings=metadata["gptneox.context_length"],
            layer_norm_eps=metadata["gptneox.attention.layer_norm_epsilon"],
            rope=RopeSettings.from_gguf(metadata, "gptneox", names, source, size=width // heads),
            use_parallel_residual=metadata.get("gptneox.use_parallel_residual", True),
            attention_bias="blk.0.attn_qkv.bias" in names,
            tie_word_embeddings="output.weight" not in names,
        )


def heads_apart(heads: int, size: int) -> torch.Tensor:
    """Return the order of rows that brings [H, 3, D] to [3, H, D]: all queries, then all keys, then all values."""
    return torch.arange(heads * 3 * size).view(heads, 3, size).transpose(0, 1).flatten()


def block(config: Config, weights: Weights, layer: int, spec: AttentionSpec, kernels: Kernels) -> LayerNormBlock:
    """Take the parameters of one layer."""
    name = f"gpt_neox.layers.{layer}"
    C, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    query_key_value = weights.linear(
        [(f"{name}.attention.query_key_value", 3 * C)],
        C,
        bias=config.attention_bias,
        orders=() if weights.gguf else [heads_apart(heads, spec.head_size)],
    )
    dense = weights.linear([(f"{name}.attention.dense", C)], C, bias=config.attention_bias)
    dense_h_to_4h = weights.linear([(f"{name}.mlp.dense_h_to_4h", inner)], C, bias=True)
    dense_4h_to_h = weights.linear([(f"{name}.mlp.dense_4h_to_h", C)], inner, bias=True)
    return LayerNormBlock(
        layer,
        (weights.layer_norm(f"{name}.input_layernorm", C), weights.layer_norm(f"{name}.post_attention_layernorm", C)),
        Attention(query_key_value, dense, heads, spec, kernels),
        MLP(dense_h_to_4h, dense_4h_to_h, kernels.gelu_tanh if config.hidden_act in _TANH else kernels.gelu_erf),
        config.layer_norm_eps,
        kernels,
        parallel=config.use_parallel_residual,
    )


class Model(LayerNormDecoder):
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
        self.eps = config.layer_norm_eps
        heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        spec = AttentionSpec(heads, size, size**-0.5, weights.rope(config.rope))
        self.attention = (spec,) * config.num_hidden_layers
        self.embed_tokens, self.lm_head = weights.ends(
            config.vocab_size,
            config.hidden_size,
            tied=config.tie_word_embeddings,
            table="gpt_neox.embed_in",
            head="embed_out",
        )
        self.layers = [block(config, weights, n, spec, kernels) for n, spec in enumerate(self.attention)]
        self.norm, self.bias = weights.layer_norm("gpt_neox.final_layer_norm", config.hidden_size)


def names(*, gguf: bool) -> dict[str, str | None]:
    """Return the file's names for the parameters, layer by layer, that aren't the model's own.

    Args:
        gguf: Of llama.cpp's converter; else those of Hugging Face checkpoints.
    """
    layers = "gpt_neox.layers.{}"
    if not gguf:
        # Masks and angles that older checkpoints store among their weights.
        buffers = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq")
        return {f"{layers}.{buffer}": None for buffer in buffers} | {"lm_head.weight": "embed_out.weight"}
    found: dict[str, str | None] = {
        "token_embd.weight": "gpt_neox.embed_in.weight",
        "output.weight": "embed_out.weight",
    }
    parts = {
        "attn_norm": "input_layernorm",
        "attn_qkv": "attention.query_key_value",
        "attn_output": "attention.dense",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    }
    for kind in ("weight", "bias"):
        found[f"output_norm.{kind}"] = f"gpt_neox.final_layer_norm.{kind}"
        found |= {f"blk.{{}}.{theirs}.{kind}": f"{layers}.{ours}.{kind}" for theirs, ours in parts.items()}
    return found
