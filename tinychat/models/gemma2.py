"""Gemma 2: what gemma.py says, with a cap on attention's scores, and every other layer, the first among them, behind a
window.

Gemma Team 2024, arXiv:2408.00118.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tinychat.kernels import Kernels
from tinychat.models.base import Weights, llama_names
from tinychat.models.cache import AttentionSpec
from tinychat.models.config import gguf_fields, json_fields
from tinychat.models.gemma import FULL, NAMES, SLIDING, GemmaConfig, GemmaDecoder, json_extras, pattern

MODEL_TYPES = ("gemma2",)
FAMILY = "Gemma 2"

_LAYERS_OF_27B: Final = 46
"""The one size whose scores are scaled by another number than the head size; a GGUF file tells it only by this."""


@dataclass(frozen=True, slots=True)
class Config(GemmaConfig):
    """Fields are the keys of config.json."""

    attn_logit_softcapping: float | None = 50.0

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Config:
        """Read a config.json.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        # Both keys are in real files, and this one counts.
        config = {**config, "hidden_act": config.get("hidden_activation", "gelu_pytorch_tanh")}
        return cls(
            **json_fields(config, source, activations=("gelu_pytorch_tanh",), tied=True),
            **json_extras(config, source, every=2, final_cap=30.0),
            attn_logit_softcapping=config.get("attn_logit_softcapping", 50.0),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Read a GGUF header: its keys and values, and its tensors' names. Early files lack caps and window.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = gguf_fields(metadata, "gemma2", names, source)
        layers = fields["num_hidden_layers"]
        scalar = fields["hidden_size"] // fields["num_attention_heads"]
        return cls(
            **fields,
            query_pre_attn_scalar=scalar if layers == _LAYERS_OF_27B else fields["head_dim"],
            layer_types=pattern(layers, 2),
            sliding_window=metadata.get("gemma2.attention.sliding_window", 4096),
            attn_logit_softcapping=metadata.get("gemma2.attn_logit_softcapping", 50.0),
            final_logit_softcapping=metadata.get("gemma2.final_logit_softcapping", 30.0),
        )


class Model(GemmaDecoder):
    """The decoder."""

    FAMILY = FAMILY

    def __init__(self, config: Config, weights: Weights, kernels: Kernels) -> None:
        """See `GemmaDecoder`."""
        rope = weights.rope(config.rope)
        attention = {
            layer_type: AttentionSpec(
                config.num_key_value_heads,
                config.head_dim,
                config.query_pre_attn_scalar**-0.5,
                rope,
                config.window(layer_type),
                config.attn_logit_softcapping,
            )
            for layer_type in (SLIDING, FULL)
        }
        super().__init__(config, weights, kernels, attention, norm_heads=False)


def names(*, gguf: bool) -> dict[str, str | None]:
    """Return the file's names for the parameters, layer by layer, that aren't the model's own.

    Args:
        gguf: Of llama.cpp's converter; else those of Hugging Face checkpoints.
    """
    return llama_names(NAMES) if gguf else {}
