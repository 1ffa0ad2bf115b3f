"""Which files make a model in Hugging Face's folder layout, and what a folder lacks of them."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from tinychat.errors import CheckpointError

CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
SINGLES: Final = ("model.safetensors", "pytorch_model.bin")
"""The one file of weights; safetensors before PyTorch's own, which are pickles."""
INDEXES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
"""What lists the files of weights where they are many."""

_SMALL: Final = (
    CONFIG,
    TOKENIZER,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.*",
)
"""The files beside the weights that the engine reads, as patterns."""


def is_small(name: str) -> bool:
    """Return whether a file at the top of a repository is one of those that tokenize and describe the model."""
    return any(fnmatch(name, pattern) for pattern in _SMALL)


def weights_entry(names: set[str]) -> str | None:
    """Return the file that leads to the weights, or None.

    Safetensors before pickles; of each kind, the single file before the index of shards.
    """
    return next((name for pair in zip(SINGLES, INDEXES, strict=True) for name in pair if name in names), None)


def shards(index: Path) -> list[str]:
    """Return the names of the files an index lists, sorted, each a plain name.

    Raises:
        CheckpointError: The index isn't one, or names a file outside of its folder.
    """
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        suffix = ".bin" if index.name.endswith(".bin.index.json") else ".safetensors"
        if not names or not all(isinstance(name, str) and name.endswith(suffix) for name in names):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{index} is not an index of files of weights.", "Download it again.") from None
    for name in names:
        if Path(name).name != name or "\\" in name or not name.isprintable():
            raise CheckpointError(f"{index} names {name!r}, a file outside of its folder; it is not to be trusted.")
    return sorted(names)


def missing(folder: Path, weights: bool = True) -> list[str]:
    """Return the files without which `folder` is no whole model (or, without weights, no tokenizer).

    Raises:
        CheckpointError: As `shards`.
        OSError: The folder can't be read.
    """
    here = {path.name for path in folder.iterdir() if path.exists()}  # a link to a blob that is gone doesn't exist
    wanted = [TOKENIZER]
    if weights:
        entry = weights_entry(here)
        wanted += [CONFIG, entry or SINGLES[0]] + (shards(folder / entry) if entry in INDEXES else [])
    return [name for name in wanted if name not in here]
