"""What one engine does on the engine's thread: its model, its load, its reply."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinychat.engine.answers import AT_ONCE, answer
from tinychat.engine.failing import failure
from tinychat.engine.fetching import Fetched, fetch
from tinychat.engine.gauges import Gauges
from tinychat.engine.looking import Views
from tinychat.engine.opening import Opened, open_model
from tinychat.errors import Cancelled, TinychatError
from tinychat.protocol import (
    Attend,
    Cancel,
    Command,
    DescribePrompt,
    Event,
    Explain,
    ExplainText,
    Generate,
    Inspect,
    Lens,
    LoadModel,
    MapCache,
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
    from tinychat.engine.thread import EngineThread
    from tinychat.engine.trace import Trace


@dataclass(frozen=True, slots=True)
class Call:
    """A function to run on the engine's thread."""

    work: Callable[[Session], Any]
    future: Future[Any]


@dataclass(slots=True)
class _Load:
    """A load that has begun."""

    command: LoadModel
    cancelled: threading.Event


Work = Command | Fetched | Call
"""What a worker is given to do."""


class Worker:
    """Takes commands and tells events. All of it runs on the engine's thread."""

    def __init__(self, on: EngineThread, tell: Callable[[Event], None], trace: Trace | None) -> None:
        """Prepare a worker that has no model.

        Args:
            on: The thread.
            tell: Puts an event into the outbox.
            trace: Where each token is written to.
        """
        self._on = on
        self._tell = tell
        self._trace = trace
        self._waiting: deque[Work] = deque()
        self._opened: Opened | None = None
        self._session: Session | None = None
        self._made_of: tuple[LoadModel, Path] | None = None
        """What the session was loaded by, and from where."""
        self._load: _Load | None = None
        self.reply: Reply | None = None
        """The one that is being made."""
        self._stop_reply = False
        self._woken = False
        """Whether a command came since the last step."""
        self._gauges = Gauges()
        self._views = Views(every_layer=trace is not None)

    # -----------------------------------------------------------------------------------------------------------------
    # What there is to do

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.reply is None and not self._waiting

    @property
    def rest(self) -> float | None:
        """Seconds until there is something to do; None: not before a command comes."""
        if self.reply is not None:
            return self.reply.rest
        return 0.0 if self._waiting else None

    def take(self, work: Work, *, begin: bool) -> None:
        """Answer what can be answered at once; begin the rest if it may be begun now, or keep it for later."""
        self._woken = True
        try:
            if isinstance(work, AT_ONCE):
                self._answer(work)
            elif begin and self.idle:
                self._begin(work)
            else:
                if isinstance(work, LoadModel | Unload) and self._load is not None:
                    self._load.cancelled.set()
                self._waiting.append(work)
        except BaseException as error:  # it is no reason to end the reply, the load or the thread
            self._fail(error)

    def go_on(self) -> None:
        """Do one step of the reply, unless it waits for its time, or begin what has waited."""
        try:
            if self.reply is not None:
                if self._woken or self.reply.rest == 0.0:
                    self._woken = False
                    self._step(self.reply)
            elif self._waiting:
                self._begin(self._waiting.popleft())
        except BaseException as error:  # only Shutdown may end the thread
            self._fail(error)

    def when_idle(self) -> None:
        """Do what may be done while nobody waits."""
        try:
            self.emit(self._views.when_idle(self._session))
        except BaseException as error:
            self._fail(error)

    def stop(self) -> None:
        """Stop reply and load; nothing else is begun."""
        self._stop_reply = True
        if self._load is not None:
            self._load.cancelled.set()

    def close(self) -> None:
        """Let go of what is open."""
        if self.reply is not None:
            self._step(self.reply)
        if self._trace is not None:
            self._trace.close()

    def emit(self, events: Sequence[Event]) -> None:
        """Tell events."""
        for event in events:
            self._tell(event)

    def _begin(self, work: Work) -> None:
        match work:
            case LoadModel():
                self._begin_load(work)
            case Fetched():
                self._finish_load(work)
            case Generate():
                self._begin_reply(work)
            case Call():
                self._run_call(work)
            case Unload():
                self._abandon_load()
                self._unload()

    def _answer(self, command: Command) -> None:
        """Do what a command says that may come at any time."""
        match command:
            case Cancel():
                self._cancel_turn(command.turn_id)
                self._cancel_load(command.load_id)
            case Shutdown():
                self._on.end()
            case SetSampler() if self.reply is not None:
                self.reply.use(command.sampler)
            case Pace() if self.reply is not None:
                self.reply.pace(command)
            case SetViews():
                self._views.look(command.views, self._session)
            case Tokenize() | ExplainText() | Explain() | Inspect() | Lens() | Attend() | DescribePrompt() | MapCache():
                self._tell(answer(command, self._opened, self._session, self.reply))
        if isinstance(command, Attend | SetViews) and self._session is not None:
            self.emit(self._gauges.kept(self._session))

    def _cancel_turn(self, turn_id: int | None) -> None:
        """Stop the reply that is being made, or drop one that waits."""
        if turn_id is None:
            return
        if self.reply is not None and turn_id == self.reply.turn_id:
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

    def loaded_as(self, command: LoadModel, path: Path) -> Session | None:
        """Return the session, if these words have loaded it from this path; whatever its sampler starts with."""
        if self._made_of is None or command.draft is not None:
            return None
        own, here = self._made_of
        same = replace(own, load_id=command.load_id, sampler=command.sampler) == command
        return self._session if same and here == path else None

    def _begin_load(self, command: LoadModel) -> None:
        """Let go of the old model and fetch the files on a thread of their own; then `Fetched` comes."""
        self._abandon_load()
        self._unload()
        cancelled = threading.Event()
        self._load = _Load(command, cancelled)

        def work() -> None:
            self._on.put(self, fetch(command, cancelled, self._tell))

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
            self._tell(ModelLoading(command.load_id, stage, fraction))
            self._check_load()

        progress("opening the files", 0.0)
        self._opened = opened = open_model(path, command.card, command.sampler)
        self._tell(TokenizerReady(command.load_id, opened.tokenizer.vocabulary, opened.tokenizer.size))
        progress("starting torch", 0.05)
        from tinychat.engine.drafting import load_both
        from tinychat.engine.kernel_choice import choose_kernels
        from tinychat.engine.loading import share, usable_cores

        last = "", 0.0

        def reading(stage: str, fraction: float) -> None:
            nonlocal last
            if stage != last[0] or fraction - last[1] >= 0.01:
                last = stage, fraction
                progress(stage, 0.2 + 0.8 * fraction)

        if (other := self._on.loaded(self, command, path)) is not None:
            session = share(other, opened)
        else:
            kernels, notices = choose_kernels(command.threads or usable_cores())
            session = load_both(opened, draft_path, command, kernels, reading, notices)
        opened.checkpoint.close()
        self._check_load()
        self._session, self._made_of = session, (command, path)
        self._tell(ModelReady(command.load_id, session.info, session.sampler, session.sources))
        self.emit(self._gauges.read(session, 0, force=True))

    def _check_load(self) -> None:
        """Look at the inbox; raise if the load is no longer wanted."""
        self._on.serve()
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
        self._opened = self._session = self._made_of = None

    # -----------------------------------------------------------------------------------------------------------------
    # Replies

    def _begin_reply(self, command: Generate) -> None:
        """Begin a reply; whatever happens, its turn ends with `TurnFinished` or `EngineFailed`."""
        from tinychat.engine.beside import KEPT_ROWS
        from tinychat.engine.reply import Reply

        if self._session is None:
            self._fail(TinychatError("No model is loaded.", "Load one first."), turn_id=command.turn_id)
            return
        self._stop_reply = False
        try:
            kept_rows = KEPT_ROWS if self._on.shared_by(self) else 0
            self.reply = Reply(self._session, command, self._views, self._trace, kept_rows)
            self.emit(self.reply.opening())
        except BaseException as error:
            self._end_reply(command.turn_id, error)

    def _step(self, reply: Reply) -> None:
        """Make one chunk of the prompt or one token."""
        try:
            if self._stop_reply:
                reply.reason = "cancelled"
            else:
                self.emit(reply.step())
                self._report(reply)
        except BaseException as error:
            self._end_reply(reply.turn_id, error)
            return
        if reply.reason is not None:
            self._end_reply(reply.turn_id)
        elif self._on.shared_by(self):
            reply.stand_still()

    def _end_reply(self, turn_id: int, error: BaseException | None = None) -> None:
        """Tell the end of a reply, as far as it got."""
        reply, self.reply = self.reply, None
        try:
            if reply is not None:
                reply.reason = "failed" if error is not None else reply.reason or "failed"
                self._tell(reply.finish(reply.reason))
                self._report(reply, force=True)
        except BaseException as caught:
            error = error or caught
        if error is not None:
            self._fail(error, turn_id=turn_id)

    def _report(self, reply: Reply, *, force: bool = False) -> None:
        if self._session is not None:
            self.emit(self._gauges.read(self._session, reply.reused, force=force))

    def _run_call(self, command: Call) -> None:
        try:
            if self._session is None:
                raise TinychatError("No model is loaded.", "Load one first.")
            command.future.set_result(command.work(self._session))
        except BaseException as error:
            command.future.set_exception(error)

    def _fail(self, error: BaseException, *, turn_id: int | None = None, load_id: int | None = None) -> None:
        self._tell(failure(error, turn_id=turn_id, load_id=load_id))
