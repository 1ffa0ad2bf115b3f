"""What has to be so before any library is imported."""

from __future__ import annotations

import os
import sys
from typing import Final

LIBRARIES: Final = {
    # The Hub's client asks for nothing but models, and draws nothing: progress is ours to show.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # Its pool of threads would compete with torch's, and it warns where a process forks.
    "TOKENIZERS_PARALLELISM": "false",
    # How often OpenMP's threads look for work before they sleep: about a millisecond, a fifteenth of its default. They
    # do it on cores that other programs need: beside two busy ones, loading took five times as long by the default, and
    # a reply twice as long. Alone it makes no difference.
    "GOMP_SPINCOUNT": "20000",
    # Typer reads options with pydantic, which would look through every installed package for plugins.
    "PYDANTIC_DISABLE_PLUGINS": "__all__",
}
"""Settings of libraries; what the person has set stays."""


def prepare() -> None:
    """Set the libraries' variables, and make sure that the three standard streams exist."""
    for name, value in LIBRARIES.items():
        os.environ.setdefault(name, value)
    # A closed stream's number would go to the next file that is opened, which would then be written by accident.
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
