"""The numbers that Llama and everything made after it have in common, from config.json or a GGUF header."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tinychat.errors import UnsupportedModel
from tinychat.models.base import check_numbers
from tinychat.models.rope import RopeSettings


@dataclass(frozen=True, slots=True)
class DecoderConfig:
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
    tie_word_embeddings: bool
    rope: RopeSettings

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


def json_fields(
    config: Mapping[str, Any], source: str, *, activations: Collection[str], theta: float = 10_000.0, tied: bool = False
) -> dict[str, Any]:
    """Return the fields of `DecoderConfig` from a config.json.

    Args:
        config: Its keys and values.
        source: For error sentences.
        activations: Names of the activation that the family's MLP has.
        theta: RoPE's base where the config has none.
        tied: Whether the head is tied where the config doesn't say.

    Raises:
        UnsupportedModel: It asks for something tinychat doesn't do.
        KeyError: A number is missing.
    """
    activation = config.get("hidden_act") or config.get("hidden_activation")
    if activation is not None and activation not in activations:
        raise UnsupportedModel(f"{source} asks for the activation {activation!r}; this family has {min(activations)}.")
    heads = config["num_attention_heads"]
    return {
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": config.get("max_position_embeddings", 2048),
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", tied)),
        "rope": RopeSettings.from_json(config, theta, source),
    }


def gguf_fields(metadata: Mapping[str, Any], architecture: str, names: Collection[str], source: str) -> dict[str, Any]:
    """Return the fields of `DecoderConfig` from a GGUF header.

    Args:
        metadata: Its keys and values.
        architecture: What its keys begin with.
        names: Its tensors' names, which tell what the keys don't: a tied head, RoPE factors.
        source: For error sentences.

    Raises:
        UnsupportedModel: It asks for something tinychat doesn't do.
        KeyError: A number is missing.
    """

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    if metadata.get(key("expert_count"), 0):
        raise UnsupportedModel(f"{source} is a mixture of experts, which tinychat doesn't run.")
    heads = metadata[key("attention.head_count")]
    width = metadata[key("embedding_length")]
    size = metadata.get(key("attention.key_length"), width // heads)
    return {
        "num_hidden_layers": metadata[key("block_count")],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get(key("attention.head_count_kv"), heads),
        "hidden_size": width,
        "intermediate_size": metadata[key("feed_forward_length")],
        "head_dim": size,
        "vocab_size": metadata.get(key("vocab_size")) or len(metadata["tokenizer.ggml.tokens"]),
        "max_position_embeddings": metadata[key("context_length")],
        "rms_norm_eps": metadata[key("attention.layer_norm_rms_epsilon")],
        "tie_word_embeddings": "output.weight" not in names,
        "rope": RopeSettings.from_gguf(metadata, architecture, names, source),
    }


def whole_heads_turn(metadata: Mapping[str, Any], architecture: str, size: int, source: str) -> None:
    """Refuse a GGUF file that rotates only a part of each head, for families that rotate all of it.

    Raises:
        UnsupportedModel: It does.
    """
    if metadata.get(f"{architecture}.rope.dimension_count", size) != size:
        raise UnsupportedModel(f"{source} rotates only a part of each head ({architecture}.rope.dimension_count).")
