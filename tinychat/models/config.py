"""The numbers that Llama and everything made after it have in common, from config.json or a GGUF header."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinychat.errors import UnsupportedModel
from tinychat.models.base import check_numbers
from tinychat.models.rope_settings import RopeSettings


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
        return self.rope.positions


def json_fields(
    config: Mapping[str, Any],
    source: str,
    *,
    activations: Collection[str],
    theta: float = 10_000.0,
    tied: bool = False,
    partial: bool = False,
    positions: int = 2048,
    layer_type: str | None = None,
) -> dict[str, Any]:
    """Return the fields of `DecoderConfig` from a config.json.

    Args:
        config: Its keys and values.
        source: For error sentences.
        activations: Names of the activation that the family's MLP has.
        theta: RoPE's base where the config has none.
        tied: Whether the head is tied where the config doesn't say.
        partial: Whether the family may turn a part of each head only.
        positions: The longest sequence where the config doesn't say.
        layer_type: Whose rotation `rope` is, in families whose layers turn differently.

    Raises:
        UnsupportedModel: It asks for something tinychat doesn't do.
        KeyError: A number is missing.
    """
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "an unnamed method")
        raise UnsupportedModel(
            f"The weights in {source} are quantised by {method} (quantization_config), which tinychat doesn't read.",
            "Choose the model's plain weights, or a GGUF file.",
        )
    activation = config.get("hidden_act") or config.get("hidden_activation")
    if activation is not None and activation not in activations:
        raise UnsupportedModel(f"{source} asks for the activation {activation!r}; this family has {min(activations)}.")
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    rope = RopeSettings.from_json(config, source, size=size, theta=theta, positions=positions, layer_type=layer_type)
    _check_turning(rope, size, source, partial=partial)
    return {
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "head_dim": size,
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": rope.max_position_embeddings,
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", tied)),
        "rope": rope,
    }


def gguf_fields(
    metadata: Mapping[str, Any], architecture: str, names: Collection[str], source: str, *, partial: bool = False
) -> dict[str, Any]:
    """Return the fields of `DecoderConfig` from a GGUF header.

    Args:
        metadata: Its keys and values.
        architecture: What its keys begin with.
        names: Its tensors' names, which tell what the keys don't: a tied head, RoPE factors.
        source: For error sentences.
        partial: Whether the family may turn a part of each head only.

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
    rope = RopeSettings.from_gguf(metadata, architecture, names, source, size=size)
    _check_turning(rope, size, source, partial=partial)
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
        "rope": rope,
    }


def windows(window: Any, layer_types: Sequence[str]) -> tuple[int | None, ...]:
    """Return how many positions each layer sees, None for all.

    Args:
        window: `sliding_window` of config.json: what layers with a window see; None: no layer has one.
        layer_types: "sliding_attention" or "full_attention" for each layer.

    Raises:
        ValueError: There are other types, or the window is no count.
    """
    if window is not None and (not isinstance(window, int) or window < 1):
        raise ValueError(f"sliding_window is {window!r}, which is no count")
    if unknown := set(layer_types) - {"sliding_attention", "full_attention"}:
        raise ValueError(f"layer_types has {min(unknown)!r}")
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)


def late_windows(config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Return how many positions each layer of a Qwen model sees, None for all: the later layers may have a window.

    Raises:
        ValueError: What the config says makes none.
    """
    if not config.get("use_sliding_window", False):
        return (None,) * layers
    first = config.get("max_window_layers", 28)
    late = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    found = windows(config.get("sliding_window", 4096), config.get("layer_types") or late)
    if len(found) != layers:
        raise ValueError(f"layer_types has {len(found)} entries for {layers} layers")
    return found


def _check_turning(rope: RopeSettings, size: int, source: str, *, partial: bool) -> None:
    """Hold how much of a head of `size` components turns to what the family's file does.

    Raises:
        UnsupportedModel: A part of it does, and the family turns all.
        ValueError: More than all of it does.
    """
    if rope.rotary_dim > size:
        raise ValueError(f"{rope.rotary_dim} of {size} components of a head can't turn")
    if rope.rotary_dim < size and not partial:
        raise UnsupportedModel(
            f"{source} turns only a part of each head ({rope.rotary_dim} of {size} components), unlike its family."
        )
