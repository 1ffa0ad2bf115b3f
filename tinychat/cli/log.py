"""The log: what happened when something went wrong, kept in a file; `--debug` prints it as well."""

from __future__ import annotations

import contextlib
import logging
import sys
from datetime import datetime
from pathlib import Path
from typing import Final

from tinychat import __version__, paths
from tinychat.pictures import pictured

_ROOM: Final = 1_000_000
"""Bytes the file may have; then it begins anew, and the old one is kept beside it."""

_printing = False


def path() -> Path:
    """Return where the log is."""
    return paths.state_dir() / "tinychat.log"


def print_everything() -> None:
    """From now on print to stderr whatever is logged, what the libraries log included (`--debug`)."""
    global _printing
    _printing = True
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("tinychat").setLevel(logging.DEBUG)


def record(detail: str) -> None:
    """Keep a traceback, or another long story."""
    if _printing:
        sys.stderr.write(pictured(detail))
    with contextlib.suppress(OSError):  # a log that can't be written is no reason to fail
        file = path()
        if file.exists() and file.stat().st_size > _ROOM:
            file.replace(file.with_suffix(".log.1"))
        with file.open("a", encoding="utf-8", errors="backslashreplace") as log:
            python = ".".join(map(str, sys.version_info[:3]))
            log.write(f"--- {datetime.now():%Y-%m-%d %H:%M:%S} tinychat {__version__}, Python {python}\n{detail}\n")
