"""The engine as a thread: the one place where torch runs, from its import on.

Commands come in by one queue, events leave by another; between two tokens, two chunks of a prompt and two tensors of a
load, the thread looks at what came in. It knows no screen. A second thread that ran torch would halve the speed of both
(each keeps a pool of workers, and there are more workers than cores); so two engines share one, and take turns.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from tinychat.engine.failing import failure
from tinychat.engine.worker import Call, Work, Worker
from tinychat.errors import Cancelled
from tinychat.protocol import Command, Event, LoadModel, Notice, Shutdown

if TYPE_CHECKING:
    from pathlib import Path

    from tinychat.engine.beside import Comparison
    from tinychat.engine.loading import Session
    from tinychat.engine.trace import Trace

_LOOK = 0.2
"""Seconds between two looks at whether the thread that is to answer is still there."""


class EngineThread:
    """Runs the workers of the engines that share it, a step of each in turn, while their replies keep in step."""

    def __init__(self) -> None:
        """Start the thread; it sleeps until the first command."""
        self._inbox: queue.SimpleQueue[tuple[Worker, Work]] = queue.SimpleQueue()
        self._workers: list[Worker] = []
        self._comparison: Comparison | None = None
        self._ended = False
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.thread.start()

    # For any thread

    def add(self, worker: Worker) -> None:
        """Have a worker take turns with those there are."""
        self._workers.append(worker)

    def put(self, worker: Worker, work: Work) -> None:
        """Give a worker something to do; never blocks."""
        self._inbox.put((worker, work))

    # For the workers

    def serve(self, wait: float | None = 0.0, *, begin: bool = False) -> None:
        """Hand out what came in.

        Args:
            wait: Seconds to wait for the first command; None: until one comes.
            begin: Whether something long may be begun; else it is kept for later.
        """
        while not self._ended:
            try:
                worker, work = self._inbox.get(timeout=wait) if wait != 0.0 else self._inbox.get_nowait()
            except queue.Empty:
                return
            wait = 0.0
            worker.take(work, begin=begin)

    def end(self) -> None:
        """Stop whatever is being done, and leave."""
        self._ended = True
        for worker in self._workers:
            worker.stop()

    def shared_by(self, worker: Worker) -> bool:
        """Whether other engines take turns with this one."""
        return any(other is not worker for other in self._workers)

    def loaded(self, worker: Worker, command: LoadModel, path: Path) -> Session | None:
        """Return what another engine has loaded by the same words, from the same files."""
        found = (other.loaded_as(command, path) for other in self._workers if other is not worker)
        return next((session for session in found if session is not None), None)

    # The thread

    def _run(self) -> None:
        while not self._ended:
            self.serve(self._patience(), begin=True)
            self._pair()
            for worker in self._workers:
                if not self._holds(worker):
                    worker.go_on()
            self._compare()
            if self._inbox.empty() and all(worker.idle for worker in self._workers):
                for worker in self._workers:
                    worker.when_idle()
        for worker in self._workers:
            worker.close()

    def _patience(self) -> float | None:
        """Return the seconds until somebody has something to do; None: not before a command comes."""
        rests = [worker.rest for worker in self._workers if not self._holds(worker)]
        return min((rest for rest in rests if rest is not None), default=None)

    def _pair(self) -> None:
        """Compare the replies of two engines that have just begun."""
        if len(self._workers) < 2:
            return
        first, second = (worker.reply for worker in self._workers)
        if first is None or second is None or (self._comparison is not None and self._comparison.of(first, second)):
            return
        from tinychat.engine.beside import Comparison

        self._comparison = Comparison(first, second)

    def _compare(self) -> None:
        """Tell how far apart the two were where they chose their latest token."""
        if self._comparison is None:
            return
        try:
            self._workers[0].emit(self._comparison.look())
        except BaseException as error:  # neither reply ends by it
            self._comparison.give_up()
            self._workers[0].emit([Notice(f"The two are compared no further. {failure(error).summary}")])
        if self._comparison.over:
            self._comparison = None

    def _holds(self, worker: Worker) -> bool:
        """Whether a worker's reply waits for the one beside it."""
        return self._comparison is not None and worker.reply is not None and self._comparison.holds(worker.reply)


class LocalEngine:
    """An engine in this process; see `protocol.Engine`."""

    def __init__(self, trace: Trace | None = None, beside: LocalEngine | None = None) -> None:
        """Start the thread, or share it.

        Args:
            trace: Where each token is written to.
            beside: The engine to take turns with, token by token: while both make a reply they keep in step, and the
                other one tells of each `Divergence`. A shutdown ends both.
        """
        self._outbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._on: EngineThread = EngineThread() if beside is None else beside._on
        self._worker = Worker(self._on, self._outbox.put, trace)
        self._on.add(self._worker)

    def send(self, command: Command) -> None:
        """Put a command into the inbox; never blocks."""
        self._on.put(self._worker, command)

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """Return all events there are, waiting up to `timeout` seconds for the first."""
        events: list[Event] = []
        try:
            events.append(self._outbox.get(timeout=timeout) if timeout > 0 else self._outbox.get_nowait())
            while True:
                events.append(self._outbox.get_nowait())
        except queue.Empty:
            return events

    def call(self, work: Callable[[Session], Any]) -> Any:
        """Run `work` on the engine thread with the loaded session, and return what it returns, or raise what it raises.

        For one-shot commands that measure: torch may run on no other thread.

        Raises:
            Cancelled: The engine was shut down.
        """
        future: Future[Any] = Future()
        self._on.put(self._worker, Call(work, future))
        while not wait((future,), timeout=_LOOK).done:
            if not self.alive and not future.done():
                raise Cancelled("The engine was shut down.")
        return future.result()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._on.thread.is_alive()

    def close(self, timeout: float = 0.3) -> bool:
        """Shut down; return whether the thread ended within `timeout` seconds.

        Where it didn't it is still inside torch, and only `os._exit` ends the process without an abort.
        """
        self.send(Shutdown())
        self._on.thread.join(timeout)
        return not self.alive
