"""`tinychat replay`: a recorded chat, on the screen, as text, or made again and compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinychat.cli import log, options
from tinychat.errors import UsageError
from tinychat.protocol import LoadModel

if TYPE_CHECKING:
    from tinychat.engine.recorded import Recording


def replay(
    file: Annotated[
        str, typer.Argument(parser=options.plain, metavar="FILE", help="What `tinychat run --record FILE` wrote.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            parser=options.plain,
            metavar="MODEL",
            help="Load this model, too: the views then show what nobody looked at while the chat was recorded.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Make every reply again, and say where, if anywhere, it differs; 1 if it does."),
    ] = False,
    theme: options.Theme = None,
    view: options.View = None,
    no_mouse: options.NoMouse = False,
) -> None:
    """Play a recorded chat as it was, every token at its time; without a terminal, print what was said.

    Needs no model: the views show what was looked at while the chat was recorded.
    """
    from tinychat.engine.recorded import read

    recording = read(Path(file))
    if check:
        from tinychat.cli.rerun import check_replies

        check_replies(recording, model)
        return
    if sys.stdin.isatty() and sys.stdout.isatty():
        _show(recording, model, theme=theme, view=view, mouse=not no_mouse)
        return
    if model is not None:
        raise UsageError("--model has no place where there is no screen.", "Add --check, or leave it out.")
    from tinychat.cli.said import print_said

    print_said(recording)


def _show(recording: Recording, model: str | None, *, theme: str | None, view: str | None, mouse: bool) -> None:
    """Play it on the screen until the person leaves.

    Raises:
        typer.Exit: The screen ended with a status other than 0.
    """
    from tinychat.engine.beneath import Beneath
    from tinychat.engine.replaying import ReplayEngine
    from tinychat.engine.thread import LocalEngine
    from tinychat.ui.replay import ReplayApp

    log.leave_the_terminal()
    beneath = None
    if model is not None:
        from tinychat.cli.rerun import load_again

        beneath = Beneath(LocalEngine(), load_again(recording, model), recording.entries)
    engine = ReplayEngine(recording, beneath)
    app = ReplayApp(engine, first_load(recording), about=about(recording), raw=_raw(recording), theme=theme, view=view)
    try:
        app.run(mouse=mouse)
    finally:
        engine.close()
    if app.return_code:
        raise typer.Exit(app.return_code)


def first_load(recording: Recording) -> LoadModel:
    """Return what was loaded first, or a stand-in where nothing was."""
    from tinychat.catalog import FileSource, ModelCard

    loads = (entry.said for entry in recording.entries if isinstance(entry.said, LoadModel))
    return next(loads, LoadModel(1, ModelCard("recording", FileSource(recording.path.name))))


def about(recording: Recording) -> str:
    """Return what is played, as a sentence."""
    when = recording.began.replace("T", " ").replace("+00:00", " UTC")
    made = f"{recording.path.name}, recorded {when} by tinychat {recording.tinychat}"
    return f"{made}. Pauses between messages are shortened."


def _raw(recording: Recording) -> bool:
    from tinychat.protocol import Generate

    return any(entry.said.raw for entry in recording.entries if isinstance(entry.said, Generate))
