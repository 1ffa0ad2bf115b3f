"""The log: tracebacks and what libraries report, always in a file, and on stderr with `--debug`."""

from __future__ import annotations

import logging
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Final

from tinychat import paths
from tinychat.pictures import pictured

_ROOM: Final = 1_000_000
"""Bytes the file may have when it is opened; more, and it begins anew, the old one kept beside it."""
_FORM: Final = logging.Formatter("%(asctime)s %(name)s: %(message)s")


def path() -> Path:
    """Return where the log is."""
    return paths.state_dir() / "tinychat.log"


def begin() -> None:
    """From now on keep what is logged: everything of ours, warnings of the libraries."""
    _remove(_File, _Stderr)  # of a command before, in tests
    logging.getLogger().addHandler(_File())
    logging.getLogger("tinychat").setLevel(logging.DEBUG)


def print_too() -> None:
    """Print it to stderr as well, and have the libraries tell more (`--debug`)."""
    logging.getLogger().addHandler(_Stderr())
    logging.getLogger().setLevel(logging.INFO)


def leave_the_terminal() -> None:
    """Keep it in the file alone: a screen is going to be drawn."""
    _remove(_Stderr)


def _remove(*kinds: type[logging.Handler]) -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, kinds):
            root.removeHandler(handler)
            handler.close()


class _File(logging.FileHandler):
    """Opens the file when there is something to write; does without it where it can't be written."""

    def __init__(self) -> None:
        super().__init__("tinychat.log", delay=True, encoding="utf-8", errors="backslashreplace")
        self.setFormatter(_FORM)

    def _open(self) -> TextIOWrapper:
        file = path()
        self.baseFilename = str(file)
        if file.exists() and file.stat().st_size > _ROOM:
            file.replace(file.with_suffix(".log.1"))
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say nothing: a log that can't be written is no reason to fail."""


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes control characters as pictures."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_FORM)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return pictured(super().format(record))
