"""The chat: engine and screen meet here, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import typer

from tinychat.cli import log
from tinychat.cli.record import recorded
from tinychat.protocol import Limits, LoadModel


def open_chat(
    load: LoadModel,
    *,
    system: str,
    limits: Limits,
    think: bool | None,
    raw: bool,
    theme: str | None,
    view: str | None,
    mouse: bool,
    trace: str | None = None,
    record: str | None = None,
) -> None:
    """Show the chat until the person leaves; write each token to the file `trace`, and all that passes to `record`.

    Raises:
        TinychatError: Such a file can't be written.
        typer.Exit: The screen ended with a status other than 0.
    """
    # The engine without torch is a third of the screen's own import; torch follows on the engine's thread.
    from tinychat.engine.thread import LocalEngine
    from tinychat.engine.trace import Trace
    from tinychat.ui.app import ChatApp

    log.leave_the_terminal()
    engine = recorded(LocalEngine(None if trace is None else Trace(Path(trace))), record)
    app = ChatApp(engine, load, system=system, limits=limits, think=think, raw=raw, theme=theme, view=view)
    try:
        app.run(mouse=mouse)
    finally:
        engine.close()
    if app.return_code:
        raise typer.Exit(app.return_code)
