"""Gemma 3, its text: what gemma.py says, with norms on the heads of queries and keys, five layers behind a window for
each that sees everything, and another rotation for these than for those.

Checkpoints of the sizes that see images hold vision tensors too, and the text's names under a prefix. Gemma Team 2025,
arXiv:2503.19786.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tinychat.errors import UnsupportedModel
from tinychat.kernels import Kernels
from tinychat.models.base import Weights, llama_names
from tinychat.models.cache import AttentionSpec
from tinychat.models.config import gguf_fields, json_fields
from tinychat.models.gemma import FULL, NAMES, SLIDING, GemmaConfig, GemmaDecoder, json_extras, pattern
from tinychat.models.rope_settings import RopeSettings

MODEL_TYPES = ("gemma3", "gemma3_text")
FAMILY = "Gemma 3"

_DEFAULTS: Final = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}
"""What a config.json leaves out where its model has it; the files of the sizes that see images do."""
_EVERY: Final = 6
_LAYERS_OF_27B: Final = 62
"""The one size whose scores are scaled by another number than the head size; a GGUF file tells it only by this."""
_PREFIXES: Final = ("language_model.model", "model.language_model")
_VISION: Final = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


@dataclass(frozen=True, slots=True)
class Config(GemmaConfig):
    """Fields are the keys of config.json; `rope` is the rotation of the layers that see everything."""

    local_rope: RopeSettings
    """The rotation of layers with a window."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Config:
        """Read a config.json, of the text alone or of text and images.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        text = {**_DEFAULTS, **(config.get("text_config") or config)}
        text["hidden_act"] = text.get("hidden_activation", "gelu_pytorch_tanh")
        if text.get("attn_logit_softcapping") is not None:
            raise UnsupportedModel(f"{source} caps the scores of attention, which Gemma 3 doesn't do.")
        every = text.get("sliding_window_pattern") or _EVERY
        return cls(
            **json_fields(text, source, activations=("gelu_pytorch_tanh",), theta=1e6, tied=True, layer_type=FULL),
            **json_extras(text, source, every=every, final_cap=None),
            local_rope=RopeSettings.from_json(text, source, size=text["head_dim"], layer_type=SLIDING),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Read a GGUF header: its keys and values, and its tensors' names.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = gguf_fields(metadata, "gemma3", names, source)
        size, layers = fields["head_dim"], fields["num_hidden_layers"]
        # The table has as many rows as there are tokens, fewer than the model's config says.
        fields["vocab_size"] = len(metadata["tokenizer.ggml.tokens"])
        every = metadata.get("gemma3.attention.sliding_window_pattern", _EVERY)
        if isinstance(every, int):
            layer_types = pattern(layers, every)
        else:
            layer_types = tuple(SLIDING if slides else FULL for slides in every)
        scalar = fields["hidden_size"] // fields["num_attention_heads"]
        return cls(
            **fields,
            query_pre_attn_scalar=scalar if layers == _LAYERS_OF_27B else size,
            layer_types=layer_types,
            sliding_window=metadata["gemma3.attention.sliding_window"],
            final_logit_softcapping=metadata.get("gemma3.final_logit_softcapping"),
            local_rope=RopeSettings.from_gguf(metadata, "gemma3", names, source, size=size, local=True),
        )


class Model(GemmaDecoder):
    """The decoder."""

    FAMILY = FAMILY

    def __init__(self, config: Config, weights: Weights, kernels: Kernels) -> None:
        """See `GemmaDecoder`."""
        attention = {
            layer_type: AttentionSpec(
                config.num_key_value_heads,
                config.head_dim,
                config.query_pre_attn_scalar**-0.5,
                rope,
                config.window(layer_type),
            )
            for layer_type, rope in ((SLIDING, config.local_rope.rope()), (FULL, weights.rope(config.rope)))
        }
        super().__init__(config, weights, kernels, attention, norm_heads=True)
        weights.pass_over(_VISION, "the part that sees images", "tinychat reads text alone")


def names(*, gguf: bool) -> dict[str, str | None]:
    """Return the file's names for the parameters, layer by layer, that aren't the model's own.

    Args:
        gguf: Of llama.cpp's converter; else those of Hugging Face checkpoints.
    """
    parts = {**NAMES, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
    found = llama_names(parts)
    if gguf:
        return found
    under: dict[str, str | None] = {"language_model.lm_head.weight": "lm_head.weight"}
    for prefix in _PREFIXES:
        under |= {f"{prefix}.{name.removeprefix('model.')}": name for name in found.values() if name}
    return under
