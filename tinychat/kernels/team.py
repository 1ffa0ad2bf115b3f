"""A team of threads that share the chunks of one job after another, with nothing but atomic numbers between them.

A token is some 150 jobs of a few microseconds. Waking OpenMP's threads costs more than that, and where another program
needs a core, its barriers wait for whole time slices. Here whoever runs takes the next chunk: the thread that posts a
job takes part itself, does all of it alone if need be, and waits only for chunks that somebody is at. Workers spin for
a moment after a job and then sleep, until `Team.wake`: while they sleep, jobs are done by their poster alone.

A job is the address of a compiled function (arguments, chunk) -> None, the address of its arguments, and a number of
chunks. One word holds how many chunks there are and which one is next, so that taking one is a single compare-and-swap,
and a worker reads what to do only once it holds a chunk: the job can't end before it has said it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from tinychat.kernels.numbers import COMPILED

_LONG = ir.IntType(64)

# Offsets in the team's memory, each in a cache line of its own.
_NEXT: Final = 0
"""Chunks of the job << 32 | next chunk."""
_DONE: Final = 64
"""Chunks that are done."""
_FUNCTION: Final = 128
_ARGUMENTS: Final = 192
_PATIENCE: Final = 256
"""Looks at the word before a worker sleeps."""
_BYTES: Final = 320
_INDEX: Final = 0xFFFFFFFF
_PATIENT: Final = 4_000_000
"""Looks that last about two milliseconds: longer than what lies between two tokens."""
_WAIT: Final = 1000
"""Looks before the poster, which waits for the last chunk, offers its core: whoever is at it may need this very one."""


class Team:
    """The workers, and the memory they share."""

    def __init__(self, threads: int) -> None:
        """Start `threads - 1` workers; they sleep."""
        self._memory = np.zeros(_BYTES // 8 + 8, dtype=np.int64)
        self.threads: Final = threads
        self.address: Final = self._memory.ctypes.data + -self._memory.ctypes.data % 64
        self._patience = (self.address + _PATIENCE - self._memory.ctypes.data) // 8
        self._resting = True
        self._workers = [_Worker(self._memory, self.address) for _ in range(threads - 1)]

    def wake(self) -> None:
        """Have the workers look for jobs for a while; costs next to nothing where they do."""
        if self._resting:
            self._resting = False
            self._memory[self._patience] = _PATIENT
        for worker in self._workers:
            if worker.asleep.is_set():
                worker.asleep.clear()
                worker.called.set()

    def rest(self) -> None:
        """Let the workers sleep at once: the cores are wanted for something else."""
        self._resting = True
        self._memory[self._patience] = 0

    def __del__(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.over = True
            worker.called.set()


class _Worker(threading.Thread):
    """Runs compiled loops on numbers that the poster hands it, never torch or anything of Python's.

    It knows the team's memory and not the team, which ends when nobody needs it any more.
    """

    def __init__(self, memory: Any, address: int) -> None:
        super().__init__(name="kernels", daemon=True)
        self._memory, self._address = memory, address
        self.asleep, self.called = threading.Event(), threading.Event()
        self.over = False
        self.asleep.set()
        self.start()

    def run(self) -> None:
        """Work whenever called."""
        while True:
            self.called.wait()
            self.called.clear()
            if self.over:
                return
            _work(self._address)
            self.asleep.set()


class _Own(threading.local):
    """The team of the thread that asks."""

    team: Team | None = None


_own: Final = _Own()


def team() -> Team:
    """Return the team of this thread: of itself alone until `set_threads`. A team takes jobs of one thread only."""
    if _own.team is None:
        _own.team = Team(1)
    return _own.team


def set_threads(threads: int) -> None:
    """Give this thread a team of so many threads, itself among them."""
    if team().threads != threads:
        _own.team = Team(threads)


def address_of(function: Any) -> int:
    """Compile a function (arguments: int, chunk: int) -> None, or find it compiled, and return its address."""
    signature = (types.int64, types.int64)
    function.compile(signature)
    compiled = function.overloads[signature]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def _operation(typing: Any, result: Any, count: int, generate: Callable[[Any, Any], Any]) -> Any:
    """Describe an operation of `count` int64 arguments to Numba."""
    del typing

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        value = generate(builder, arguments)
        return context.get_dummy_value() if result == types.void else value

    return result(*[types.int64] * count), code


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _LONG.as_pointer())


@intrinsic
def _load(typing: Any, address: Any) -> Any:
    del address
    return _operation(typing, types.int64, 1, lambda b, a: b.load_atomic(_at(b, a[0]), "acquire", 8))


@intrinsic
def _store(typing: Any, address: Any, value: Any) -> Any:
    del address, value
    return _operation(typing, types.void, 2, lambda b, a: b.store_atomic(a[1], _at(b, a[0]), "release", 8))


@intrinsic
def _add(typing: Any, address: Any, value: Any) -> Any:
    del address, value
    return _operation(typing, types.int64, 2, lambda b, a: b.atomic_rmw("add", _at(b, a[0]), a[1], "acq_rel"))


@intrinsic
def _swap(typing: Any, address: Any, old: Any, new: Any) -> Any:
    """Put `new` where `old` is; tell whether it was."""
    del address, old, new

    def generate(builder: Any, arguments: Any) -> Any:
        address, old, new = arguments
        result = builder.cmpxchg(_at(builder, address), old, new, "acq_rel", "acquire")
        return builder.extract_value(result, 1)

    return _operation(typing, types.boolean, 3, generate)


@intrinsic
def _call(typing: Any, function: Any, arguments: Any, chunk: Any) -> Any:
    """Call a function by its address, as Numba calls its own: the status is returned, results and errors go by pointer.

    A kernel has neither.
    """
    del function, arguments, chunk
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.IntType(32), [pointer.as_pointer(), pointer.as_pointer(), _LONG, _LONG])

    def generate(builder: Any, given: Any) -> Any:
        nowhere = [cgutils.alloca_once(builder, pointer) for _ in range(2)]
        return builder.call(builder.inttoptr(given[0], kind.as_pointer()), [*nowhere, given[1], given[2]])

    return _operation(typing, types.void, 3, generate)


_yield = types.ExternalFunction("sched_yield", types.int32())


@njit(**COMPILED)
def _take(team: int) -> bool:
    """Do the next chunk, if there is one; tell whether there was."""
    word = _load(team + _NEXT)
    chunk = word & _INDEX
    if chunk >= word >> 32:
        return False
    if _swap(team + _NEXT, word, word + 1):
        _call(_load(team + _FUNCTION), _load(team + _ARGUMENTS), chunk)
        _add(team + _DONE, 1)
    return True


@njit(**COMPILED)
def share(team: int, function: int, arguments: int, chunks: int) -> None:
    """Have the team do all chunks of a job, and take part; for compiled code, on the one thread that posts jobs."""
    _store(team + _FUNCTION, function)
    _store(team + _ARGUMENTS, arguments)
    _store(team + _DONE, 0)
    _store(team + _NEXT, chunks << 32)
    while _take(team):
        pass
    looks = 0
    while _load(team + _DONE) < chunks:
        looks += 1
        if looks > _WAIT:
            _yield()


@njit(**COMPILED)
def _work(team: int) -> None:
    """Take chunks until none has come for a while.

    A worker that offered its core in between would stay on the poster's for good: it is never seen waiting there.
    """
    looks = 0
    while looks <= _load(team + _PATIENCE):
        looks = 0 if _take(team) else looks + 1
