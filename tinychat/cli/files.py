"""A model's files for commands that need no engine: fetched while the person may change their mind."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

from tinychat.catalog import Catalog, ModelCard
from tinychat.cli.console import Notices
from tinychat.cli.progress import Progress

_CLEARING: Final = 2.0
"""Seconds that a download which was stopped has for removing what it leaves."""


def card_of(name: str | None) -> ModelCard:
    """Return what is known of the model a person calls `name`; None is the default one."""
    catalog = Catalog.load()
    return catalog.resolve(catalog.default if name is None else name)


def fetched(card: ModelCard, *, weights: bool = True) -> Path:
    """Return the model's .gguf file or folder, downloading it if it isn't here; raises as `hub.fetch`.

    The download runs on a thread of its own, which a Ctrl-C tells to stop and to clear up.
    """
    from tinychat import hub, models

    if (here := hub.located(card, weights)) is not None:
        return here
    outcome: list[Path | BaseException] = []
    cancelled = threading.Event()
    with Progress(Notices(), card.name) as progress:

        def judge(config: dict[str, Any]) -> None:
            models.architecture(config, card.name)

        def work() -> None:
            try:
                outcome.append(hub.fetch(card, progress.bytes, cancelled, judge, weights))
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=work, name="download", daemon=True)
        thread.start()
        try:
            thread.join()
        except BaseException:
            cancelled.set()
            thread.join(_CLEARING)
            raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
