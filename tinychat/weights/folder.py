"""A folder in Hugging Face's layout: config.json, generation_config.json, and one or many safetensors files."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

from tinychat import filekind
from tinychat.errors import CheckpointError, UnsupportedModel
from tinychat.weights.checkpoint import Checkpoint, StoredTensor
from tinychat.weights.safetensors import read_tensors
from tinychat.weights.source import DOWNLOAD_AGAIN, SourceFile, quoted

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
MAX_JSON: Final = 2**26
"""Bytes of a JSON file: many times the largest index."""


def open_folder(path: Path) -> Checkpoint:
    """Open a model folder.

    Raises:
        CheckpointError: A file is missing, corrupt, or contradicts another; the sentence names it.
        UnsupportedModel: The weights are there, but not as safetensors.
    """
    if not (path / "config.json").is_file():
        found = next(iter(sorted(path.glob("*.gguf"))), None)
        raise CheckpointError(
            f"{path} has no config.json, so it is not a model folder.",
            f"Give the path of the file itself: {found}" if found else "",
        )
    config = read_json(path / "config.json")
    optional = path / "generation_config.json"
    generation_config = read_json(optional) if optional.is_file() else {}
    sources: list[SourceFile] = []
    try:
        if (path / SINGLE).exists():
            sources.append(SourceFile(path / SINGLE))
            tensors = read_tensors(sources[0])
        elif (path / INDEX).is_file():
            tensors = _read_shards(path, sources)
        else:
            raise _no_weights(path)
    except BaseException:
        for source in sources:
            source.close()
        raise
    return Checkpoint(path, "safetensors", config, tensors, sources, generation_config)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        CheckpointError: It can't be read, or isn't a JSON object; the sentence has the place.
    """
    with SourceFile(path) as source:
        if source.size > MAX_JSON:
            raise CheckpointError(f"{path} has {source.size:,} bytes, too many for what it should hold.")
        source.refuse_unless(filekind.OTHER)
        data = source.read(0, source.size)
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} isn't JSON: {error}.", DOWNLOAD_AGAIN) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} isn't a JSON object.", DOWNLOAD_AGAIN)
    return value


def _read_shards(path: Path, sources: list[SourceFile]) -> dict[str, StoredTensor]:
    """Open every shard the index names, and hold the index against what they contain."""
    index = path / INDEX
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(shard, str) for shard in where.values()):
        raise CheckpointError(f"{index} has no weight_map of tensors to files.", DOWNLOAD_AGAIN)
    shards = sorted(set(where.values()))
    for shard in shards:
        if shard in ("", ".", "..") or PurePosixPath(shard).name != shard or PureWindowsPath(shard).name != shard:
            raise CheckpointError(f"{index} names {quoted(shard)}, which is not a file beside it.")
    if missing := [shard for shard in shards if not (path / shard).is_file()]:
        raise CheckpointError(
            f"{path} lacks {_listed(missing)}, {len(missing)} of the {len(shards)} files of weights its index names.",
            "Download what is missing.",
        )
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        sources.append(SourceFile(path / shard))
        found = read_tensors(sources[-1])
        listed = {name for name, file in where.items() if file == shard}
        if absent := sorted(listed - found.keys()):
            raise CheckpointError(
                f"{path / shard} lacks {_listed(absent)}, {len(absent)} of the {len(listed)} tensors {INDEX} says "
                "it holds.",
                DOWNLOAD_AGAIN,
            )
        if extra := sorted(found.keys() - listed):
            raise CheckpointError(
                f"{path / shard} holds {_listed(extra)}, which {INDEX} doesn't say: they are not of one model.",
                DOWNLOAD_AGAIN,
            )
        tensors |= found
    return tensors


def _no_weights(path: Path) -> CheckpointError | UnsupportedModel:
    """Say what stands in a folder in place of the weights."""
    if parts := sorted(path.glob("model-*-of-*.safetensors")):
        return CheckpointError(f"{path} has {parts[0].name}, but no {INDEX} to say what is where.")
    if pickles := sorted(file for suffix in ("bin", "pth", "pt") for file in path.glob(f"*.{suffix}")):
        return UnsupportedModel(
            f"{path} has its weights as {pickles[0].name}, a PyTorch pickle; tinychat reads safetensors.",
            "Look for a safetensors version of this model.",
        )
    return CheckpointError(f"{path} has no weights: neither {SINGLE} nor {INDEX}.")


def _listed(names: list[str], most: int = 3) -> str:
    """Return the first few names, as a sentence holds them."""
    return ", ".join(map(quoted, names[:most])) + (" and others" if len(names) > most else "")
