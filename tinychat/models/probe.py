"""Taps: a way to look at a tensor where it is made.

A model calls `probe(name, tensor)` at each tap behind `if probe:`, so that a closed probe costs one truth test. Names
are those of TransformerLens' hooks (`blocks.3.hook_resid_post`), so that people can move between the two. What the
model doesn't need itself is handed over as a function that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

Tapped = torch.Tensor | Callable[[], torch.Tensor]


class Probe:
    """Keeps copies of the tensors whose names were asked for."""

    rows: int | None = None
    """How many of the last positions somebody looks at, where a tensor is made for the probe alone; None: all."""

    def __init__(self, names: Collection[str] | None = None) -> None:
        """Listen to `names`; None listens to all."""
        self.names = None if names is None else frozenset(names)
        self.seen: dict[str, torch.Tensor] = {}

    def __bool__(self) -> bool:
        return self.names is None or len(self.names) > 0

    def __call__(self, name: str, tapped: Tapped) -> None:
        """Keep a copy of a tensor, as it is now, under `name`."""
        if self.names is None or name in self.names:
            tensor = tapped if isinstance(tapped, torch.Tensor) else tapped()
            self.seen[name] = tensor.detach().clone()


CLOSED = Probe(())
"""Listens to nothing."""
