"""How much memory there is, what a model needs, and whether it fits."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from tinychat.errors import OutOfMemory

DEFAULT_CONTEXT: Final = 8192
"""Most tokens a context gets without being asked for."""
LEAST_CONTEXT: Final = 512
"""Tokens a chat needs to be one."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_CGROUP = Path("/sys/fs/cgroup")


def available() -> int:
    """Return the bytes this process could still get: the machine's, or its container's where that is less."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        cached = next(
            int(line.split()[1])
            for line in (_CGROUP / "memory.stat").read_text().splitlines()
            if line.startswith("inactive_file ")
        )
    except (OSError, ValueError, StopIteration):
        return free
    return max(0, min(free, limit - used + cached))


def process() -> int:
    """Return the bytes of this process that are resident."""
    return int(psutil.Process().memory_info().rss)


@contextmanager
def given_back_at_once() -> Iterator[None]:
    """Have what is freed meanwhile go back to the system, where the C library is glibc: it would keep a lot of it.

    Loading frees many buffers of some megabytes among the weights, which stay. In its own way glibc first gives each a
    mapping of its own, then, taught by the first that is freed, puts them on its heap, between what stays.
    """
    library = ctypes.CDLL(None)
    choose, trim = getattr(library, "mallopt", None), getattr(library, "malloc_trim", None)
    if choose is None or trim is None:
        yield
        return
    choose(_MMAP_THRESHOLD, 2**18)
    try:
        yield
    finally:
        trim(0)
        # Where its own way ends: mappings for 32 MB and more, and twice that kept on top of the heap.
        choose(_MMAP_THRESHOLD, 2**25)
        choose(_TRIM_THRESHOLD, 2**26)


def fit_context(
    *, asked: int | None, positions: int, weights: int, cache_bytes: Callable[[int], int], free: int, name: str
) -> int:
    """Return how many tokens the caches shall hold.

    Without being asked, the least of what the model was made for, 8192, and what half of the memory left holds.

    Args:
        asked: What the person wants, or None.
        positions: What the model was made for.
        weights: Bytes the weights will take.
        cache_bytes: Tokens -> bytes of all layers' caches together; grows with the tokens.
        free: Bytes there are, before loading.
        name: The model's, for the sentence.

    Raises:
        OutOfMemory: The weights, or they and the cache asked for, don't fit.
    """
    left = free - weights
    least = min(asked or LEAST_CONTEXT, positions)
    if cache_bytes(least) > left:
        raise OutOfMemory(
            f"{name} needs {gigabytes(weights)} for its weights and {gigabytes(cache_bytes(least))} for a "
            f"cache of {least:,} tokens, but this machine has {gigabytes(free)} free.",
            "Close other programs, choose a smaller model, or a smaller --context.",
        )
    if asked is not None:
        return asked
    most = range(least, min(positions, DEFAULT_CONTEXT) + 1)
    return max(least, least - 1 + bisect_right(most, left // 2, key=cache_bytes))


def gigabytes(count: int) -> str:
    """Return a number of bytes as people read it: 98 MB, 3.4 GB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= 0.9995 * size:  # from here on three digits round up to it
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count} bytes"
