"""Which form of the layer primitives replies take: Numba's where it can be imported, torch's where it can't."""

from __future__ import annotations

from tinychat.kernels import Kernels, plain


def choose_kernels(threads: int) -> tuple[Kernels, tuple[str, ...]]:
    """Import the fused kernels; each is compiled when it is first called, and read from a file from then on.

    Args:
        threads: Threads their loops may use.

    Returns:
        The kernels, and notices where they are not the fused ones.
    """
    try:
        from tinychat.kernels import fused
    except ImportError as error:
        return plain, (f"Numba can't be imported ({error}): replies take the slower torch path.",)
    fused.set_threads(threads)
    return fused, ()
