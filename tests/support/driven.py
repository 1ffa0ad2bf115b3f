"""A LocalEngine that a test drives: it waits for events with a deadline, and can hold the model at any step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from rulers import card

from tinychat.engine.context import Context
from tinychat.engine.thread import LocalEngine
from tinychat.errors import TinychatError
from tinychat.protocol import (
    Event,
    Generate,
    Limits,
    LoadModel,
    Message,
    ModelReady,
    SamplerSettings,
    TokenEmitted,
    TurnFinished,
)

DEADLINE: Final = 20.0
"""Seconds after which something that should have happened is taken not to."""
GREEDY: Final = SamplerSettings(temperature=0.0)
Kind = TypeVar("Kind")


class Driven:
    """An engine, and every event it gave."""

    def __init__(self, beside: Driven | None = None) -> None:
        self.engine = LocalEngine(beside=None if beside is None else beside.engine)
        self.events: list[Event] = []
        self.send = self.engine.send

    def poll(self) -> None:
        """Take what events there are."""
        self.events += self.engine.poll(0.01)

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Take events until `done`."""
        end = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < end, f"no {what} within {DEADLINE:g} seconds; events: {self.events}"
            self.poll()

    def of(self, kind: type[Kind], **attributes: Any) -> list[Kind]:
        """Return the events of a kind so far, whose attributes are these."""
        return [
            event
            for event in self.events
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in attributes.items())
        ]

    def wait(self, kind: type[Kind], count: int = 1, **attributes: Any) -> Kind:
        """Take events until there are `count` of a kind; return the last of them."""
        self.until(lambda: len(self.of(kind, **attributes)) >= count, f"{kind.__name__} {attributes or ''}")
        return self.of(kind, **attributes)[count - 1]

    def load(self, path: Path, load_id: int = 1, *, model: dict[str, Any] | None = None, **more: Any) -> ModelReady:
        """Load a model in fp32 on one thread."""
        self.send(load_command(path, load_id, model=model, **more))
        return self.wait(ModelReady, load_id=load_id)

    def say(self, text: str = "What is", turn_id: int = 1, count: int | None = 6, **more: Any) -> None:
        """Ask for a greedy reply."""
        self.send(generate_command(text, turn_id, count, **more))

    def reply(self, text: str = "What is", turn_id: int = 1, count: int | None = 6, **more: Any) -> TurnFinished:
        """Ask for a greedy reply, and wait for its end."""
        self.say(text, turn_id, count, **more)
        return self.wait(TurnFinished, turn_id=turn_id)

    def tokens(self, turn_id: int = 1) -> list[int]:
        """Return the ids a reply has emitted."""
        return [event.token_id for event in self.of(TokenEmitted, turn_id=turn_id)]

    def settle(self) -> None:
        """Wait until everything sent so far has been dealt with, and take its events."""
        with suppress(TinychatError):  # there may be no model
            self.engine.call(lambda session: None)
        self.events += self.engine.poll()

    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self.engine.alive


def load_command(path: Path, load_id: int = 1, *, model: dict[str, Any] | None = None, **more: Any) -> LoadModel:
    """Return the command that loads a tiny model."""
    return LoadModel(load_id, card(path, **(model or {})), **{"dtype": "fp32", "threads": 1} | more)


def generate_command(text: str = "What is", turn_id: int = 1, count: int | None = 6, **more: Any) -> Generate:
    """Return the command for a greedy reply that end ids don't end."""
    return Generate(
        turn_id,
        **{
            "messages": (Message("user", text),),
            "sampler": GREEDY,
            "limits": Limits(max_tokens=count, ignore_end=True),
        }
        | more,
    )


@contextmanager
def driven() -> Iterator[Driven]:
    """An engine that has ended when the test has."""
    engine = Driven()
    try:
        yield engine
    finally:
        assert engine.engine.close(DEADLINE), "the engine's thread didn't end"


def replies(cases: list[tuple[str, str, str]]) -> dict[str, dict[str, Any]]:
    """Load models one after the other, each (name, path, dtype); return by name what became of it and what it says."""
    made = {}
    with driven() as engine:
        for load_id, (name, path, dtype) in enumerate(cases):
            info = engine.load(Path(path), load_id=load_id, dtype=dtype, context=128).info
            reply = engine.reply("The capital of France", turn_id=load_id, count=24)
            ids, notices = list(reply.ids), list(info.notices)
            made[name] = {"ids": ids, "dtype": info.dtype, "notices": notices, "kernel": info.kernel}
    return made


class Gate:
    """Holds every step of the model until the test lets it pass."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._permits = threading.Semaphore(0)
        self._open = True
        self.waiting = threading.Event()
        """Set while a step waits."""
        self.passed = 0
        """Steps let through."""
        real = Context.forward

        def forward(context: Context, *arguments: Any, **more: Any) -> Any:
            if not self._open:
                self.waiting.set()
                assert self._permits.acquire(timeout=DEADLINE), "nobody let the step pass"
                self.waiting.clear()
            self.passed += 1
            return real(context, *arguments, **more)

        patch.setattr(Context, "forward", forward)

    def close(self) -> None:
        """Hold the next step."""
        self._open = False

    def open(self) -> None:
        """Let every step pass from now on."""
        self._open = True
        self._permits.release(1000)

    def let(self, steps: int) -> None:
        """Let so many steps pass, and wait until the next one waits."""
        for _ in range(steps):
            assert self.waiting.wait(DEADLINE)
            self.waiting.clear()
            self._permits.release()
        assert self.waiting.wait(DEADLINE)
