"""Mistral: Llama's shape, and a window in every layer where the config has one (Jiang et al. 2023, arXiv:2310.06825).

Its GGUF files call themselves "llama" and keep no window; llama.py reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinychat.errors import UnsupportedModel
from tinychat.kernels import Kernels
from tinychat.models import pre_norm
from tinychat.models.base import Weights
from tinychat.models.config import DecoderConfig, json_fields, windows

MODEL_TYPES = ("mistral",)
FAMILY = "Mistral"


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Fields are the keys of config.json, but for `windows`: positions each layer sees (None: all)."""

    windows: tuple[int | None, ...] = ()

    @classmethod
    def from_json(cls, config: Mapping[str, Any], source: str) -> Config:
        """Read a config.json.

        Raises:
            UnsupportedModel: It asks for something this file doesn't do.
        """
        fields = json_fields(config, source, activations=("silu",), positions=131072)
        window = config.get("sliding_window", 4096)
        return cls(**fields, windows=windows(window, ["sliding_attention"] * fields["num_hidden_layers"]))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], names: Sequence[str], source: str) -> Config:
        """Refuse a GGUF file of this name: there are none.

        Raises:
            UnsupportedModel: Always.
        """
        del metadata, names
        raise UnsupportedModel(f"{source} calls its architecture mistral, as no GGUF file does: Mistral's say llama.")


class Model(pre_norm.PreNormDecoder):
    """The decoder."""

    FAMILY = FAMILY

    def __init__(self, config: Config, weights: Weights, kernels: Kernels) -> None:
        """Take every parameter from `weights`."""
        ropes = [weights.rope(config.rope)] * config.layers
        super().__init__(config, weights, kernels, pre_norm.specs(config, ropes, config.windows))


def names(*, gguf: bool) -> dict[str, str | None]:
    """Return the file's names for the parameters that aren't the model's own."""
    return pre_norm.names(gguf)
