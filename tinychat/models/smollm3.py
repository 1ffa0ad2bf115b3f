"""SmolLM3: Llama's shape, but every fourth layer doesn't turn its queries and keys, and so knows no positions
(NoPE: Yang et al. 2025, arXiv:2501.18795).

llama.cpp knows that interval alone, and permutes queries and keys as Llama's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tinychat.kernels import Kernels
from tinychat.models import pre_norm
from tinychat.models.base import Weights
from tinychat.models.config import DecoderConfig, gguf_fields, json_fields, windows

MODEL_TYPES = ("smollm3",)
FAMILY = "SmolLM3"
INTERVAL: Final = 4
"""One layer in as many has no rotation, where the checkpoint doesn't say otherwise."""


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Fields are the keys of config.json, but for the last two, which have an entry a layer."""

    attention_bias: bool = False
    mlp_bias: bool = False
    turns: tuple[bool, ...] = ()
    """Whether a layer turns its queries and keys; `no_rope_layers` (where 1 means that it does)."""
    windows: tuple[int | None, ...] = ()
    """Positions that a layer sees; None: all."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Config:
        """Read a config.json.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = json_fields(config, source, activations=("silu",), theta=2e6, tied=True, positions=32768)
        layers = fields["num_hidden_layers"]
        turns = config.get("no_rope_layers") or _pattern(layers, config.get("no_rope_layer_interval", INTERVAL))
        if len(turns) != layers:
            raise ValueError(f"no_rope_layers has {len(turns)} entries for {layers} layers")
        local = [("full_attention" if turning else "sliding_attention") for turning in turns]
        window = config.get("sliding_window") if config.get("use_sliding_window") else None
        return cls(
            **fields,
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            turns=tuple(map(bool, turns)),
            windows=windows(window, config.get("layer_types") or local),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Read a GGUF header: its keys and values, and its tensors' names.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = gguf_fields(metadata, "smollm3", names, source)
        layers = fields["num_hidden_layers"]
        return cls(
            **fields,
            attention_bias="blk.0.attn_q.bias" in names,
            mlp_bias="blk.0.ffn_gate.bias" in names,
            turns=tuple(_pattern(layers, INTERVAL)),
            windows=(None,) * layers,
        )


def _pattern(layers: int, interval: int) -> list[bool]:
    return [(layer + 1) % interval != 0 for layer in range(layers)]


class Model(pre_norm.PreNormDecoder):
    """The decoder."""

    FAMILY = FAMILY

    def __init__(self, config: Config, weights: Weights, kernels: Kernels) -> None:
        """Take every parameter from `weights`."""
        rope = weights.rope(config.rope)
        super().__init__(
            config,
            weights,
            kernels,
            pre_norm.specs(config, [rope if turning else None for turning in config.turns], config.windows),
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            mlp_bias=config.mlp_bias,
            permuted=weights.gguf,
        )


def names(*, gguf: bool) -> dict[str, str | None]:
    """Return the file's names for the parameters that aren't the model's own."""
    return pre_norm.names(gguf)
