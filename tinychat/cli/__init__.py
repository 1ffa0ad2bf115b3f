"""The command line. `main` is what `tinychat` runs; commands import the engine or the screen when they need it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and leave with its exit status.

    Args:
        arguments: The words after `tinychat`; None takes them from the process.
    """
    try:
        # Before Typer and the libraries are imported: some read their environment then.
        from tinychat.cli.environment import prepare

        prepare()
        from tinychat.cli.ending import leave, run_command
    except KeyboardInterrupt:
        sys.exit(130)
    leave(run_command(list(sys.argv[1:] if arguments is None else arguments)))
