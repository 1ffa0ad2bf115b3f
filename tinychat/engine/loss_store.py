"""Losses that were measured, kept for the file they belong to: `losses.json` in the folder for data.

A file is known by a fingerprint: the SHA-256 of its size and of samples of it. To hash many gigabytes would take longer
than loading them; two models of the same shape and vocabulary differ in almost every weight, and so in every sample.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tinychat import paths
from tinychat.protocol import QuantisationLoss

_SAMPLES: Final = 64
_SAMPLE: Final = 4096
"""Bytes of one; the samples lie at even distances, the first at the file's beginning and the last at its end."""


def fingerprint(files: Iterable[Path]) -> str:
    """Return what tells a model's weight files from all others, hexadecimal.

    Raises:
        OSError: One can't be read.
    """
    digest = hashlib.sha256()
    for path in sorted(set(files), key=lambda path: path.name):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            digest.update(size.to_bytes(8, "little"))
            for index in range(_SAMPLES):
                file.seek(max(size - _SAMPLE, 0) * index // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def remember(files: Iterable[Path], form: str, loss: QuantisationLoss) -> None:
    """Keep what was measured of a model in this form (`ModelInfo.dtype_reason`).

    Raises:
        OSError: The folder can't be written to.
    """
    known, store = _read(), _store()
    known.setdefault(fingerprint(files), {})[form] = asdict(loss)
    store.parent.mkdir(parents=True, exist_ok=True)
    fresh = store.with_name(f"{store.name}.{os.getpid()}")
    fresh.write_text(json.dumps(known, indent=1), encoding="utf-8")
    fresh.replace(store)


def recall(files: Iterable[Path]) -> dict[str, QuantisationLoss]:
    """Return what was measured of a model: form -> loss. Nothing where there is no store, or none that can be read."""
    known = _read()
    if not known:
        return {}
    try:
        return {form: QuantisationLoss(**loss) for form, loss in known.get(fingerprint(files), {}).items()}
    except (OSError, TypeError, AttributeError):
        return {}


def _store() -> Path:
    return paths.data_dir() / "losses.json"


def _read() -> dict[str, Any]:
    try:
        known = json.loads(_store().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
