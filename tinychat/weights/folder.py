"""A folder in Hugging Face's layout: config.json, generation_config.json, and one or many files of weights.

Safetensors come first; where there are none, PyTorch's own files are opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final, Literal

from tinychat import filekind
from tinychat.errors import CheckpointError, UnsupportedModel
from tinychat.weights.checkpoint import Checkpoint, Source
from tinychat.weights.safetensors import read_tensors
from tinychat.weights.source import DOWNLOAD_AGAIN, SourceFile, quoted
from tinychat.weights.stored import StoredTensor
from tinychat.weights.torch_bin import TorchFile

MAX_JSON: Final = 2**26
"""Bytes of a JSON file: many times the largest index."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What the files of weights are called in one format."""

    format: Literal["safetensors", "pickle"]
    single: str
    index: str
    """Says which tensor is in which of several files."""


SAFETENSORS: Final = Naming("safetensors", "model.safetensors", "model.safetensors.index.json")
PICKLES: Final = Naming("pickle", "pytorch_model.bin", "pytorch_model.bin.index.json")


def open_folder(path: Path) -> Checkpoint:
    """Open a model folder.

    Raises:
        CheckpointError: A file is missing, corrupt, or contradicts another; the sentence names it.
        UnsupportedModel: The weights are there, but in files of another kind.
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
    naming = next((n for n in (SAFETENSORS, PICKLES) if (path / n.single).exists() or (path / n.index).is_file()), None)
    if naming is None:
        raise _no_weights(path)
    single = (path / naming.single).exists()
    shards = {naming.single: set[str]()} if single else _read_index(path, naming.index)
    opened: dict[str, _Opened] = {}
    try:
        for shard in shards:
            opened[shard] = _open(path / shard)

        def tensors() -> dict[str, StoredTensor]:
            listed: dict[str, StoredTensor] = {}
            for shard, (_, list_tensors) in opened.items():
                found = list_tensors()
                if not single:
                    _compare(path / shard, found, shards[shard], naming.index)
                listed |= found
            return listed

        return Checkpoint(
            path,
            naming.format,
            config,
            tensors if naming is PICKLES else tensors(),  # listing pickles takes torch
            [source for source, _ in opened.values()],
            generation_config,
        )
    except BaseException:
        for source, _ in opened.values():
            source.close()
        raise


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


_Opened = tuple[Source, Callable[[], Mapping[str, StoredTensor]]]


def _open(path: Path) -> _Opened:
    """Open a file of weights; return it and what lists its tensors."""
    if path.suffix == ".bin":
        pickled = TorchFile(path)
        return pickled, pickled.tensors
    source = SourceFile(path)
    return source, partial(read_tensors, source)


def _read_index(path: Path, name: str) -> dict[str, set[str]]:
    """Return the files an index names, all of which are there -> the tensors it says they hold."""
    index = path / name
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
    return {shard: {tensor for tensor, file in where.items() if file == shard} for shard in shards}


def _compare(shard: Path, found: Mapping[str, StoredTensor], listed: set[str], index: str) -> None:
    """Hold the tensors of a file against what the index says it holds."""
    if absent := sorted(listed - found.keys()):
        raise CheckpointError(
            f"{shard} lacks {_listed(absent)}, {len(absent)} of the {len(listed)} tensors {index} says it holds.",
            DOWNLOAD_AGAIN,
        )
    if extra := sorted(found.keys() - listed):
        raise CheckpointError(
            f"{shard} holds {_listed(extra)}, which {index} doesn't say: they are not of one model.",
            DOWNLOAD_AGAIN,
        )


def _no_weights(path: Path) -> CheckpointError | UnsupportedModel:
    """Say what stands in a folder in place of the weights."""
    for naming, pattern in ((SAFETENSORS, "model-*-of-*.safetensors"), (PICKLES, "pytorch_model-*-of-*.bin")):
        if parts := sorted(path.glob(pattern)):
            return CheckpointError(f"{path} has {parts[0].name}, but no {naming.index} to say what is where.")
    if others := sorted(file for suffix in ("bin", "pth", "pt") for file in path.glob(f"*.{suffix}")):
        return UnsupportedModel(
            f"{path} has {others[0].name}, but tinychat reads {SAFETENSORS.single} and {PICKLES.single}.",
            "Look for a safetensors version of this model.",
        )
    return CheckpointError(f"{path} has no weights: neither {SAFETENSORS.single} nor {SAFETENSORS.index}.")


def _listed(names: list[str], most: int = 3) -> str:
    """Return the first few names, as a sentence holds them."""
    return ", ".join(map(quoted, names[:most])) + (" and others" if len(names) > most else "")
