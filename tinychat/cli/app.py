"""All commands under one name."""

from __future__ import annotations

from typing import Annotated

import typer

from tinychat import __version__
from tinychat.cli import log
from tinychat.cli.bench import bench
from tinychat.cli.compare import compare
from tinychat.cli.console import Notices, Results
from tinychat.cli.ending import WRONG_WORDS
from tinychat.cli.models import list_, pull, show
from tinychat.cli.prompt import prompt
from tinychat.cli.replay import replay
from tinychat.cli.run import run
from tinychat.cli.sessions import sessions
from tinychat.cli.themes import themes
from tinychat.cli.tokenize import tokenize

app = typer.Typer(
    name="tinychat",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(asked: bool) -> None:
    if asked:
        Results().line(f"tinychat {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def tinychat(
    context: typer.Context,
    _asked: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks and what the libraries log.")] = False,
) -> None:
    """Talk to a language model in the terminal, and see how it makes each token.

    `tinychat run` opens the chat with a small model that comes from the Python package index.
    """
    if debug:
        log.print_too()
    if context.invoked_subcommand is None:
        Notices().line(context.get_help())
        raise typer.Exit(WRONG_WORDS)


for command in (run, replay, tokenize, prompt, pull, list_, show, bench, compare, themes):
    app.command(command.__name__.strip("_"))(command)
app.add_typer(sessions)
