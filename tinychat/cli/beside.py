"""Two models asked the same: on the screen, or one reply of each on stdout."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import typer

from tinychat.cli import log
from tinychat.cli.console import Notices, Results
from tinychat.cli.ending import Interruption
from tinychat.cli.headless import Headless
from tinychat.cli.reply import Json, ending
from tinychat.errors import TinychatError
from tinychat.protocol import (
    MAX_SEED,
    Divergence,
    Generate,
    Limits,
    LoadModel,
    Message,
    ModelReady,
    TokenEmitted,
    TurnFinished,
)


def open_both(
    loads: tuple[LoadModel, LoadModel],
    *,
    system: str,
    limits: Limits,
    think: bool | None,
    raw: bool,
    theme: str | None,
    mouse: bool,
) -> None:
    """Show both until the person leaves.

    Raises:
        typer.Exit: The screen ended with a status other than 0.
    """
    from tinychat.engine.thread import LocalEngine
    from tinychat.ui.beside_app import BesideApp

    log.leave_the_terminal()
    first = LocalEngine()
    engines = first, LocalEngine(beside=first)
    app = BesideApp(engines, loads, system=system, limits=limits, think=think, raw=raw, theme=theme)
    try:
        app.run(mouse=mouse)
    finally:
        first.close()
    if app.return_code:
        raise typer.Exit(app.return_code)


def print_both(
    loads: tuple[LoadModel, LoadModel],
    text: str,
    *,
    system: str,
    limits: Limits,
    think: bool | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Load both, have them answer `text` in turn, and print A's reply as it comes, then B's.

    Raises:
        TinychatError: One can't be loaded, or its reply failed; what was said has been printed.
        typer.Exit: The person stopped it; the status says how.
    """
    results, notices = Results(), Notices()
    messages = (*((Message("system", system),) if system else ()), Message("user", text))
    with Headless() as first:
        sides = first, Headless(beside=first)
        ready = [side.load(load) for side, load in zip(sides, loads, strict=True)]
        seeds = [each.sampler.seed for each in ready]
        common = next((seed for seed in seeds if seed is not None), secrets.randbelow(MAX_SEED + 1))
        commands = [
            Generate(
                turn_id=1,
                messages=messages,
                sampler=replace(each.sampler, seed=common if seed is None else seed),
                limits=limits,
                detail="full" if as_json else "none",
                raw=raw,
                think=think,
            )
            for each, seed in zip(ready, seeds, strict=True)
        ]
        printers = [
            (SideJson if as_json else SideText)(results, name, each) for name, each in zip("AB", ready, strict=True)
        ]
        failed: TinychatError | None = None
        with Interruption() as interruption:
            for side, command in zip(sides, commands, strict=True):
                side.send(command)
            for side, command, printer, each in zip(sides, commands, printers, ready, strict=True):
                try:
                    for event in side.follow(command, interruption):
                        printer.show(event)
                        if isinstance(event, TurnFinished) and (why := ending(event, each, limits)):
                            notices.line(f"note: {printer.name}: {why}")
                except TinychatError as error:  # the other one's reply is as good as ever
                    printer.cut_off()
                    if failed is not None:
                        notices.line(f"{failed}")
                    failed = error
        if interruption.status:
            raise typer.Exit(interruption.status)
        if failed is not None:
            raise failed


class SideText:
    """A line that says which it is, the text, and a blank line between the two."""

    def __init__(self, results: Results, name: str, ready: ModelReady) -> None:
        self.name = name
        self._results = results
        self._head = f"{'' if name == 'A' else chr(10)}{name}: {ready.info.name}, {ready.info.dtype}\n"
        self._printed = 0

    def show(self, event: TokenEmitted | Divergence | TurnFinished) -> None:
        """Print what may be shown now, and in the end what was held back."""
        self._begin()
        if isinstance(event, TokenEmitted):
            self._results.text(event.text)
            self._printed += len(event.text)
        elif isinstance(event, TurnFinished):
            self._results.text(f"{event.text[self._printed :]}\n")

    def cut_off(self) -> None:
        """End the line."""
        self._begin()
        self._results.text("\n")

    def _begin(self) -> None:
        self._results.text(self._head)
        self._head = ""


class SideJson:
    """The objects of `--json`, each with its side; and one a token that says how far A and B are apart there."""

    def __init__(self, results: Results, name: str, ready: ModelReady) -> None:
        self.name = name
        self._results = results
        self._json = Json(self)
        self._json.ready(ready)

    def json(self, value: dict[str, Any]) -> None:
        """Print an object."""
        self._results.json({"side": self.name} | value)

    def show(self, event: TokenEmitted | Divergence | TurnFinished) -> None:
        """Print an event."""
        if isinstance(event, TokenEmitted):
            self._json.token(event)
        elif isinstance(event, TurnFinished):
            self._json.done(event)
        else:
            self._results.json({"type": "divergence", "index": event.index, "nats": event.nats})

    def cut_off(self) -> None:
        """Print nothing."""
