"""From what is known of a model to files on this machine, whatever its source."""

from __future__ import annotations

import threading
from pathlib import Path

from tinychat.catalog import FileSource, HubSource, ModelCard
from tinychat.errors import ModelNotFound
from tinychat.hub import cache
from tinychat.hub.download import Judge, Progress, fetch_repo
from tinychat.hub.wheel import fetch_wheel


def located(card: ModelCard, weights: bool = True) -> Path | None:
    """Return the model's .gguf file or folder if it is here, whole; makes no request.

    Args:
        card: The model.
        weights: False where the tokenizer is enough; a .gguf file holds both, so it makes no difference there.
    """
    source = card.source
    if isinstance(source, HubSource):
        return cache.hub_path(source, weights)
    if isinstance(source, FileSource):
        return Path(source.path) if Path(source.path).exists() else None
    return cache.wheel_path(source) if cache.has_wheel(source) else None


def fetch(
    card: ModelCard,
    progress: Progress,
    cancelled: threading.Event,
    judge: Judge | None = None,
    weights: bool = True,
) -> Path:
    """Return the model's .gguf file, or its folder in Hugging Face's layout, downloading it if it isn't here.

    A model that is here costs no request, so it starts with the network cut. Blocks; call it from a thread that may
    wait. It touches files and sockets alone.

    Args:
        card: The model.
        progress: Called from another thread with (file, bytes so far of all files together, bytes in all or 0).
        cancelled: Ends the download within a fifth of a second, also where the network is silent. One event belongs
            to one call: it must stay set.
        judge: Called with the contents of config.json before weights are downloaded from the Hub; raises what it
            has against it (UnsupportedModel).
        weights: False fetches no more than the tokenizer needs, where the source has it apart.

    Raises:
        DownloadError: It can't be fetched; the sentence says why and what to do.
        UnsupportedModel: What `judge` raised, or a repository in formats tinychat doesn't read.
        CheckpointError: A file of the repository is not what it should be.
        ModelNotFound: A local file or folder is no longer there.
        Cancelled: `cancelled` was set.
    """
    if (path := located(card, weights)) is not None:
        return path
    source = card.source
    if isinstance(source, HubSource):
        return fetch_repo(source, progress, cancelled, judge, weights)
    if isinstance(source, FileSource):
        raise ModelNotFound(f"There is no file or folder {source.path} any more.", "Check the path.")
    return fetch_wheel(source, progress, cancelled)
