"""The engine as a thread: the one place where torch runs, from its import on.

Commands come in by one queue, events leave by another; between two tokens, two chunks of a prompt and two tensors of a
load, the thread looks at what came in. It knows no screen. A second thread that ran torch would halve the speed of both
(each keeps a pool of workers, and there are more workers than cores).
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinychat.engine import memory
from tinychat.engine.answers import AT_ONCE, answer
from tinychat.engine.fetching import Fetched, fetch
from tinychat.engine.looking import Views
from tinychat.engine.opening import Opened, open_model
from tinychat.errors import Cancelled, TinychatError, UsageError
from tinychat.protocol import (
    Attend,
    CacheStats,
    Cancel,
    Command,
    DescribePrompt,
    EngineFailed,
    Event,
    Explain,
    ExplainText,
    Generate,
    Inspect,
    LayerCache,
    Lens,
    LoadModel,
    MapCache,
    MemoryStats,
    ModelLoading,
    ModelReady,
    Pace,
    SetSampler,
    SetViews,
    Shutdown,
    Tokenize,
    TokenizerReady,
    Unload,
)

if TYPE_CHECKING:
    from tinychat.engine.loading import Session
    from tinychat.engine.reply import Reply
    from tinychat.engine.trace import Trace

_LOOK = 0.2
"""Seconds between two looks at whether the thread that is to answer is still there."""
_STATS_EVERY = 0.1
"""Seconds between two reports of caches and memory."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A function to run on the engine thread."""

    work: Callable[[Session], Any]
    future: Future[Any]


@dataclass(slots=True)
class _Load:
    """A load that has begun."""

    command: LoadModel
    cancelled: threading.Event


class LocalEngine:
    """An engine in this process; see `protocol.Engine`."""

    def __init__(self, trace: Trace | None = None) -> None:
        """Start the thread; it sleeps until the first command. `trace`: where each token is written to."""
        self._inbox: queue.SimpleQueue[Command | Fetched | _Call] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._waiting: deque[Command | Fetched | _Call] = deque()
        self._opened: Opened | None = None
        self._session: Session | None = None
        self._load: _Load | None = None
        self._reply: Reply | None = None
        self._turn_id: int | None = None
        self._stop_reply = False
        self._shutdown = False
        self._next_stats = 0.0
        self._kept = 0
        """Bytes kept of tokens, as they were told of last."""
        self._trace = trace
        self._views = Views(every_layer=trace is not None)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # -----------------------------------------------------------------------------------------------------------------
    # For the other threads

    def send(self, command: Command) -> None:
        """Put a command into the inbox; never blocks."""
        self._inbox.put(command)

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
        self._inbox.put(_Call(work, future))
        while not wait((future,), timeout=_LOOK).done:
            if not self._thread.is_alive() and not future.done():
                raise Cancelled("The engine was shut down.")
        return future.result()

    def close(self, timeout: float = 0.3) -> bool:
        """Shut down; return whether the thread ended within `timeout` seconds.

        Where it didn't it is still inside torch, and only `os._exit` ends the process without an abort.
        """
        self.send(Shutdown())
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # -----------------------------------------------------------------------------------------------------------------
    # The thread

    def _run(self) -> None:
        while not self._shutdown:
            command = self._waiting.popleft() if self._waiting else self._inbox.get()
            try:
                self._handle(command)
                if self._inbox.empty() and not self._waiting:
                    self._emit(self._views.when_idle(self._session))
            except BaseException as error:  # only Shutdown may end the thread
                self._fail(error)
        if self._trace is not None:
            self._trace.close()

    def _handle(self, command: Command | Fetched | _Call) -> None:
        """Do what a command says, now that nothing else is being done."""
        match command:
            case LoadModel():
                self._begin_load(command)
            case Fetched():
                self._finish_load(command)
            case Generate():
                self._generate(command)
            case _Call():
                self._run_call(command)
            case Unload():
                self._abandon_load()
                self._unload()
            case _:
                self._answer(command)

    def _serve(self, wait: float | None = 0.0) -> None:
        """Between two steps of something long: answer what can be answered now, keep the rest for later.

        Args:
            wait: Seconds to wait for the first command; None: until one comes.
        """
        while True:
            try:
                command = self._inbox.get(timeout=wait) if wait != 0.0 else self._inbox.get_nowait()
            except queue.Empty:
                return
            wait = 0.0
            if isinstance(command, AT_ONCE):
                try:
                    self._answer(command)
                except BaseException as error:  # it is no reason to end the reply or the load
                    self._fail(error)
                continue
            if isinstance(command, LoadModel | Unload) and self._load is not None:
                self._load.cancelled.set()
            self._waiting.append(command)

    def _answer(self, command: Command) -> None:
        """Do what a command says that may come at any time."""
        match command:
            case Cancel():
                self._cancel_turn(command.turn_id)
                self._cancel_load(command.load_id)
            case Shutdown():
                self._shutdown = self._stop_reply = True
                if self._load is not None:
                    self._load.cancelled.set()
            case SetSampler() if self._reply is not None:
                self._reply.use(command.sampler)
            case Pace() if self._reply is not None:
                self._reply.pace(command)
            case SetViews():
                self._views.look(command.views, self._session)
            case Tokenize() | ExplainText() | Explain() | Inspect() | Lens() | Attend() | DescribePrompt() | MapCache():
                self._outbox.put(answer(command, self._opened, self._session, self._reply))
        if isinstance(command, Attend | SetViews) and self._session and self._session.kept_bytes != self._kept:
            self._report_memory(self._session)

    def _cancel_turn(self, turn_id: int | None) -> None:
        """Stop the reply that is being made, or drop one that waits."""
        if turn_id is None:
            return
        if turn_id == self._turn_id:
            self._stop_reply = True
        for waiting in list(self._waiting):
            if isinstance(waiting, Generate) and waiting.turn_id == turn_id:
                self._waiting.remove(waiting)
                self._fail(Cancelled("The reply was cancelled before it began."), turn_id=turn_id)

    def _cancel_load(self, load_id: int | None) -> None:
        """Stop the load that has begun, or drop one that waits."""
        if load_id is None:
            return
        if self._load is not None and load_id == self._load.command.load_id:
            self._load.cancelled.set()
        for waiting in list(self._waiting):
            if isinstance(waiting, LoadModel) and waiting.load_id == load_id:
                self._waiting.remove(waiting)
                self._fail(Cancelled("The load was cancelled before it began."), load_id=load_id)

    # -----------------------------------------------------------------------------------------------------------------
    # Loading

    def _begin_load(self, command: LoadModel) -> None:
        """Let go of the old model and fetch the files on a thread of their own; then `Fetched` comes."""
        self._abandon_load()
        self._unload()
        cancelled = threading.Event()
        self._load = _Load(command, cancelled)

        def work() -> None:
            self._inbox.put(fetch(command, cancelled, self._outbox.put))

        threading.Thread(target=work, name="download", daemon=True).start()

    def _finish_load(self, fetched: Fetched) -> None:
        """Open and load the files of the newest load."""
        command, load = fetched.command, self._load
        if load is None or load.command is not command:
            return
        try:
            if isinstance(fetched.result, BaseException):
                raise fetched.result
            self._load_files(command, fetched.result, fetched.draft)
        except BaseException as error:
            self._unload()
            self._fail(error, load_id=command.load_id)
        finally:
            self._load = None

    def _load_files(self, command: LoadModel, path: Path, draft_path: Path | None) -> None:
        def progress(stage: str, fraction: float) -> None:
            self._outbox.put(ModelLoading(command.load_id, stage, fraction))
            self._check_load()

        progress("opening the files", 0.0)
        self._opened = opened = open_model(path, command.card, command.sampler)
        self._outbox.put(TokenizerReady(command.load_id, opened.tokenizer.vocabulary, opened.tokenizer.size))
        progress("starting torch", 0.05)
        from tinychat.engine.drafting import load_both
        from tinychat.engine.kernel_choice import choose_kernels
        from tinychat.engine.loading import usable_cores

        kernels, notices = choose_kernels(command.threads or usable_cores())
        last = "", 0.0

        def reading(stage: str, fraction: float) -> None:
            nonlocal last
            if stage != last[0] or fraction - last[1] >= 0.01:
                last = stage, fraction
                progress(stage, 0.2 + 0.8 * fraction)

        session = load_both(opened, draft_path, command, kernels, reading, notices)
        opened.checkpoint.close()
        self._check_load()
        self._session = session
        self._outbox.put(ModelReady(command.load_id, session.info, session.sampler, session.sources))
        self._report(0, force=True)

    def _check_load(self) -> None:
        """Look at the inbox; raise if the load is no longer wanted."""
        self._serve()
        if self._load is None or self._load.cancelled.is_set():
            raise Cancelled("Loading was stopped.")

    def _abandon_load(self) -> None:
        """End a load whose files are not here yet; what its download still sends is passed over."""
        if self._load is not None:
            self._load.cancelled.set()
            self._fail(Cancelled("Loading was stopped."), load_id=self._load.command.load_id)
            self._load = None

    def _unload(self) -> None:
        if self._opened is not None:
            self._opened.checkpoint.close()
        self._opened = self._session = None

    # -----------------------------------------------------------------------------------------------------------------
    # Replies

    def _generate(self, command: Generate) -> None:
        """Make a reply, event by event; whatever happens, its turn ends with `TurnFinished` or `EngineFailed`."""
        from tinychat.engine.reply import Reply

        if self._session is None:
            self._fail(TinychatError("No model is loaded.", "Load one first."), turn_id=command.turn_id)
            return
        self._turn_id, self._stop_reply = command.turn_id, False
        error: BaseException | None = None
        try:
            self._reply = reply = Reply(self._session, command, self._views, self._trace)
            self._emit(reply.opening())
            while reply.reason is None:
                self._serve(reply.rest)
                if self._stop_reply:
                    reply.reason = "cancelled"
                    break
                self._emit(reply.step())
                self._report(reply.reused)
        except BaseException as caught:
            error = caught
        try:
            if self._reply is not None:
                reason = "failed" if error is not None else self._reply.reason
                self._emit([self._reply.finish(reason or "failed")])
                self._report(self._reply.reused, force=True)
        except BaseException as caught:
            error = error or caught
        self._reply = self._turn_id = None
        if error is not None:
            self._fail(error, turn_id=command.turn_id)

    def _run_call(self, command: _Call) -> None:
        try:
            if self._session is None:
                raise TinychatError("No model is loaded.", "Load one first.")
            command.future.set_result(command.work(self._session))
        except BaseException as error:
            command.future.set_exception(error)

    # -----------------------------------------------------------------------------------------------------------------
    # Events

    def _emit(self, events: list[Event]) -> None:
        for event in events:
            self._outbox.put(event)

    def _report(self, reused: int, *, force: bool = False) -> None:
        """Report caches and memory, ten times a second at most."""
        now = time.monotonic()
        session = self._session
        if session is None or (now < self._next_stats and not force):
            return
        self._next_stats = now + _STATS_EVERY
        layers = tuple(
            LayerCache(c.length, c.capacity, c.used_bytes, c.nbytes, str(c.dtype).removeprefix("torch."))
            for c in session.context.caches
        )
        self._outbox.put(CacheStats(layers, reused, session.context.blocks))
        self._report_memory(session)

    def _report_memory(self, session: Session) -> None:
        self._kept = session.kept_bytes
        ours = session.weights_bytes, session.used_bytes, session.reserved_bytes
        copy = session.info.copy_bytes
        self._outbox.put(MemoryStats(*ours, memory.process(), memory.available(), copy, self._kept))

    def _fail(self, error: BaseException, *, turn_id: int | None = None, load_id: int | None = None) -> None:
        """Report an error as sentences; one that nobody foresaw is named as such, with its text."""
        detail = "".join(traceback.format_exception(error))
        if isinstance(error, TinychatError):
            summary, remedy = error.summary, error.remedy
        elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's own is a RuntimeError
            summary, remedy = "The machine ran out of memory.", "Close other programs, or choose a smaller model."
        else:
            summary = f"Something went wrong that tinychat has no sentence for: {type(error).__name__}: {error}"
            remedy = "Run with --debug for the whole story, and please report it."
        stopped, usage = isinstance(error, Cancelled), isinstance(error, UsageError)
        self._outbox.put(EngineFailed(summary, remedy, detail, turn_id, load_id, stopped, usage))
