"""A repository of the Hub becomes files in the Hub's own cache, by huggingface_hub, file by file."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tinychat.catalog import HubSource
from tinychat.errors import Cancelled, CheckpointError, DownloadError, UnsupportedModel
from tinychat.hub import cache, failures, layout

Progress = Callable[[str, int, int], None]
"""Called with the file's name, the bytes here so far of all files together, and the bytes of all (0: not known)."""
Judge = Callable[[dict[str, Any]], None]
"""Called with config.json; raises UnsupportedModel before the weights are fetched."""

_CHUNK: Final = 256 * 1024
"""Bytes between two looks at the cancel event; huggingface_hub's own 10 MiB takes minutes on a slow line."""
_TIMEOUT: Final = 10.0


def cancelled_error() -> Cancelled:
    """Return what a cancelled download raises."""
    return Cancelled("The download was stopped.")


def fetch_repo(
    source: HubSource, progress: Progress, cancelled: threading.Event, judge: Judge | None, weights: bool
) -> Path:
    """Download what a model needs of a repository; return its folder in the cache, or its one .gguf file.

    The work is done on a thread of its own, which is left to its timeout where the person cancels while a socket is
    silent: a blocked read can't be interrupted, and nobody should wait for it.

    Raises:
        DownloadError: With the sentence for each of the ways it can fail.
        UnsupportedModel: What `judge` says, or a repository in formats tinychat doesn't read.
        Cancelled: `cancelled` was set.
    """
    outcome: list[Path | Exception] = []
    done = threading.Event()

    def work() -> None:
        try:
            outcome.append(_Download(source, progress, cancelled, judge, weights).run())
        except Exception as error:
            outcome.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="hub-download", daemon=True).start()
    while not done.wait(0.05):
        if cancelled.is_set() and not done.wait(0.1):  # a moment to remove its temporary file
            raise cancelled_error()
    result = outcome[0]
    if isinstance(result, Path):
        return result
    raise failures.explained(result, source) from result


def _client() -> ModuleType:
    """Import huggingface_hub (0.2 s) and make it quiet, fine-grained and predictable."""
    import huggingface_hub
    from huggingface_hub import constants

    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK
    constants.HF_HUB_DISABLE_XET = True  # no progress by bytes, no cancel, a second cache
    constants.HF_HUB_DISABLE_TELEMETRY = True  # else a request to list the programs that may be calling, first
    # Its own handler writes to stderr, where a screen may be; what it logs goes to our log alone.
    logging.getLogger("huggingface_hub").handlers[:] = [logging.NullHandler()]
    return huggingface_hub


class _Download:
    """One run over the files of a repository. Raises exceptions of huggingface_hub as they come."""

    def __init__(
        self, source: HubSource, progress: Progress, cancelled: threading.Event, judge: Judge | None, weights: bool
    ) -> None:
        self._source = source
        self._judge = judge
        self._weights = weights
        self._tally = _Tally(progress, cancelled)
        self._hub = _client()
        self._commit = ""
        self._sizes: dict[str, int] = {}
        self._got: dict[str, Path] = {}

    def run(self) -> Path:
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            raise failures.offline(self._source)
        api = self._hub.HfApi(library_name="tinychat")
        info = api.model_info(self._source.repo, revision=self._source.revision, files_metadata=True, timeout=_TIMEOUT)
        if not info.sha:
            raise ValueError("An answer without a commit")
        self._commit = info.sha
        self._sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
        self._tally.check()
        result = self._file() if self._source.file else self._folder()
        cache.remember(self._source, self._commit)
        return result

    def _file(self) -> Path:
        name = self._source.file
        if name not in self._sizes:
            raise DownloadError(f"{self._source.repo} has no file {name}.", self._gguf_files())
        self._plan([name])
        return self._get(name)

    def _folder(self) -> Path:
        small = sorted(filter(layout.is_small, self._sizes))
        if layout.TOKENIZER not in small:
            raise self._refusal()
        entry = layout.weights_entry(set(self._sizes)) if self._weights else None
        if self._weights:
            if entry is None or layout.CONFIG not in small:
                raise self._refusal()
            config = self._get(layout.CONFIG)
            if self._judge is not None:
                self._judge(_parsed(config))
        files = [*small, *([entry] if entry else [])]
        if entry in layout.INDEXES:
            shards = layout.shards(self._get(entry))
            if lacking := [name for name in shards if name not in self._sizes]:
                raise DownloadError(f"{self._source.repo} lacks {', '.join(lacking)}, which its own index lists.")
            files += shards
        self._plan(files)
        for name in files:  # the weights come last: a folder that has them has all the rest
            self._get(name)
        return self._got[layout.TOKENIZER].parent

    def _plan(self, files: list[str]) -> None:
        """Refuse what the disk can't hold, and begin to count."""
        here = [name for name in files if self._cached(name)]
        needed = sum(self._sizes[name] for name in files if name not in here)
        folder = cache.hub_cache()
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise failures.no_space(self._source.repo, needed, free, folder, "HF_HOME")
        self._tally.total = sum(self._sizes[name] for name in files)

    def _cached(self, name: str) -> bool:
        return isinstance(self._hub.try_to_load_from_cache(self._source.repo, name, revision=self._commit), str)

    def _get(self, name: str) -> Path:
        """Fetch one file, once; one that the cache holds at this commit costs no request."""
        if name in self._got:
            return self._got[name]
        self._tally.begin(name)
        path = self._hub.hf_hub_download(
            self._source.repo,
            name,
            revision=self._commit,
            endpoint=self._hub.constants.ENDPOINT,
            library_name="tinychat",
            tqdm_class=self._tally.bar,
        )
        self._tally.finish(self._sizes[name])
        self._got[name] = Path(path)
        return self._got[name]

    def _refusal(self) -> UnsupportedModel | DownloadError:
        """Say what a repository is that holds no model tinychat reads."""
        repo, names = self._source.repo, self._sizes
        if any(name.lower().endswith(".gguf") for name in names):
            return DownloadError(f"{repo} holds GGUF files, of which one has to be named.", self._gguf_files())
        if layout.weights_entry(set(names)) is None:
            other = next((name for name in sorted(names) if name.endswith((".bin", ".pt", ".pth"))), "")
            return UnsupportedModel(
                f"{repo} has no weights tinychat knows: neither {' nor '.join(layout.SINGLES)}"
                + (f", only {other}." if other else "."),
                "Look for a version with model.safetensors, or a .gguf file.",
            )
        lacking = layout.CONFIG if layout.CONFIG not in names else layout.TOKENIZER
        return UnsupportedModel(f"{repo} has no {lacking}, which tinychat needs.")

    def _gguf_files(self) -> str:
        from huggingface_hub import constants

        names = sorted(name for name in self._sizes if name.lower().endswith(".gguf"))
        if not names:
            return "It has no .gguf file at all."
        more = f" ({len(names)} in all)" if len(names) > 1 else ""
        page = f"{constants.ENDPOINT}/{self._source.repo}/blob/{self._source.revision}/{names[0]}"
        return f"Give its web address: {page}{more}"


class _Tally:
    """Counts the bytes of all files together; stands in for the progress bar huggingface_hub would draw."""

    def __init__(self, progress: Progress, cancelled: threading.Event) -> None:
        self.total = 0
        self._progress = progress
        self._cancelled = cancelled
        self._file = ""
        self._before = 0
        self._done = 0

    def check(self) -> None:
        if self._cancelled.is_set():
            raise cancelled_error()

    def begin(self, file: str) -> None:
        self.check()
        self._file = file
        self._before = self._done

    def finish(self, size: int) -> None:
        """Count a file as whole: cached ones, and those that came compressed, were not counted on the way."""
        self._done = self._before + size
        self._report()

    def bar(self, **_: object) -> _Tally:
        """Take the place of a progress bar's class."""
        return self

    def update(self, n: float | None = 1) -> None:
        """Count bytes of the file; negative ones where a server made the client start again."""
        self._done += int(n or 0)
        self._report()

    def close(self) -> None:
        """Take the place of a progress bar's end."""

    def __enter__(self) -> _Tally:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report(self) -> None:
        self.check()
        self._progress(self._file, self._done, self.total)


def _parsed(config: Path) -> dict[str, Any]:
    try:
        value = json.loads(config.read_bytes())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CheckpointError(f"{config} is not a JSON object, as a model's config.json is.")
    return value
