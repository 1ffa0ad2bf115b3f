"""The mathematics: one file an architecture, named here.

`find` imports the file of an architecture (and torch with it); `supported` doesn't.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tinychat.errors import UnsupportedModel

if TYPE_CHECKING:
    from types import ModuleType

ARCHITECTURES: Final = {
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "gpt2": "gpt2",
    "gpt_neox": "gpt_neox",
    "gptneox": "gpt_neox",
    "llama": "llama",
    "mistral": "mistral",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
}
"""`model_type` of config.json, or `general.architecture` of GGUF -> file of this folder."""


def architecture(config: dict[str, Any], source: str) -> str:
    """Return the architecture that a config.json or the metadata of a GGUF file names, if tinychat runs it.

    Raises:
        UnsupportedModel: It doesn't; the sentence has what it found and what it could run.
    """
    kind = config.get("model_type") or config.get("general.architecture")
    if kind in ARCHITECTURES:
        return str(kind)
    called = (config.get("architectures") or [kind])[0]
    raise UnsupportedModel(
        f"{called or 'An unnamed architecture'} ({source}) is not a decoder tinychat supports.",
        f"It supports {', '.join(sorted(ARCHITECTURES))}.",
    )


def find(kind: str) -> ModuleType:
    """Return the file of an architecture: FAMILY, Config, Model, names."""
    return import_module(f"tinychat.models.{ARCHITECTURES[kind]}")
