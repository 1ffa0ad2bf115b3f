"""The chat: engine and screen meet here, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tinychat.cli import log
from tinychat.cli.console import Notices
from tinychat.cli.record import recorded
from tinychat.protocol import Limits, LoadModel

if TYPE_CHECKING:
    from tinychat.chats.store import Saved


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
    saved: Saved | None = None,
    private: bool = False,
) -> None:
    """Show the chat until the person leaves; write each token to the file `trace`, and all that passes to `record`.

    Args:
        load: The model.
        system: The system prompt, empty for none.
        limits: When replies end.
        think: What thinking models are told.
        raw: Whether the text is continued as it is.
        theme: Colours.
        view: The view that is open at first.
        mouse: Whether the mouse is ours.
        trace: A file for each token.
        record: A file for all that passes.
        saved: A chat to go on with.
        private: Whether nothing of the chat is kept.

    Raises:
        TinychatError: Such a file can't be written.
        typer.Exit: The screen ended with a status other than 0.
    """
    # The engine without torch is a third of the screen's own import; torch follows on the engine's thread.
    from tinychat.chats.recorder import Recorder
    from tinychat.engine.thread import LocalEngine
    from tinychat.engine.trace import Trace
    from tinychat.ui.app import ChatApp

    log.leave_the_terminal()
    engine = recorded(LocalEngine(None if trace is None else Trace(Path(trace))), record)
    recorder = None if private else Recorder()
    app = ChatApp(
        engine,
        load,
        system=system,
        limits=limits,
        think=think,
        raw=raw,
        theme=theme,
        view=view,
        recorder=recorder,
        resume=saved,
        private=private,
    )
    try:
        app.run(mouse=mouse)
    finally:
        kept = recorder is None or recorder.close()
        engine.close()
        if recorder is not None and not kept:
            Notices().line(f"note: the end of this chat was not saved. {recorder.problem}".strip())
    if app.return_code:
        raise typer.Exit(app.return_code)
