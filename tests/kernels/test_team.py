"""The team of threads: every chunk of every job is done once, whoever does it, and nobody is left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from numba import njit

from tinychat.kernels import team as teams
from tinychat.kernels.numbers import COMPILED, array
from tinychat.kernels.team import Team, address_of, share


@njit(**COMPILED)
def _count(arguments: int, chunk: int) -> None:
    """Count a visit of each chunk, after some work whose length depends on the chunk."""
    counts = array(arguments, chunk + 1, np.int64(0))
    x = np.float64(chunk)
    for _ in range(chunk % 7 * 40):
        x = x * 0.5 + 1.0
    counts[chunk] += 1 if x > -1 else 2


@njit(**COMPILED)
def _all(team: int, function: int, counts: int, chunks: int, jobs: int) -> None:
    for _ in range(jobs):
        share(team, function, counts, chunks)


def visits(team: Team, chunks: int, jobs: int) -> np.ndarray:
    """Run the same job many times; return how often each chunk was done."""
    counts = np.zeros(chunks, dtype=np.int64)
    _all(team.address, address_of(_count), counts.ctypes.data, chunks, jobs)
    return counts


def workers() -> int:
    """How many workers live."""
    return sum(thread.name == "kernels" for thread in threading.enumerate())


def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("chunks", [1, 2, 3, 17, 256])
def test_every_chunk_is_done_once_a_job(threads: int, chunks: int) -> None:
    """Would catch: a chunk taken twice or not at all, a job that ends before its chunks; also with too few cores."""
    team = Team(threads)
    for _ in range(20):
        team.wake()
        assert visits(team, chunks, jobs=50).tolist() == [50] * chunks


def test_sleeping_workers_are_not_waited_for() -> None:
    """Would catch: a job that hangs where nobody was called, or where all were sent to rest."""
    team = Team(2)
    assert visits(team, 9, jobs=3).tolist() == [3] * 9
    for _ in range(200):
        team.wake()
        assert visits(team, 9, jobs=2).tolist() == [2] * 9
        team.rest()


def test_a_team_ends_with_its_owner() -> None:
    """Would catch: a thread left over from each model that was loaded."""
    before = workers()
    team = Team(3)
    assert workers() == before + 2
    team.wake()
    visits(team, 4, jobs=1)
    del team
    gc.collect()
    until(lambda: workers() == before)


def test_each_thread_has_a_team_of_its_own() -> None:
    """Would catch: two engines that post jobs to one team, which takes those of one thread only."""
    found = []
    barrier = threading.Barrier(2)

    def run() -> None:
        teams.set_threads(2)
        team = teams.team()
        found.append(team)
        barrier.wait()
        for _ in range(50):
            team.wake()
            assert visits(team, 31, jobs=20).tolist() == [20] * 31
        found.append(None)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count(None) == 2
    assert len({id(team) for team in found}) == 3
