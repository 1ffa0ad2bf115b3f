"""The layer primitives on numbers that can be worked out on paper; `examples` is what the rulers of `compare` run.

Angles are quarter turns, so that a rotation is (a, b) -> (-b, a); the scale is ln 3, so that a score of s weighs 3^s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from tinychat.kernels import Kernels
from tinychat.models.cache import AttentionSpec, SlabCache
from tinychat.models.rope import Rope, Rotary

TOLERANCE: Final = 2e-6
"""Of each number: a few roundings in fp32."""

Rows = Sequence[Sequence[float]]

# Heads of two components; position 0 doesn't turn, position 1 turns by a quarter.
#
#          query, head 0   query, head 1     key         value
# token 0  (1,  0)         (0, 1)            (1, 0)      (4, 0)
# token 1  (0, -1)         (1, 1)            (0, 1)      (0, 8)
# turned   (1,  0)         (-1, 1)           (-1, 0)
#
# Token 0 sees itself alone: both heads mix (4, 0).
# Token 1, head 0: scores (1, 0).(1, 0) = 1 and (1, 0).(-1, 0) = -1, weights 3 : 1/3 = 0.9 : 0.1, mix (3.6, 0.8).
# Token 1, head 1: scores (-1, 1).(1, 0) = -1 and (-1, 1).(-1, 0) = 1, weights 0.1 : 0.9, mix (0.4, 7.2).
_TWO: Final = (
    (1, 0, 0, 1, 1, 0, 4, 0),
    (0, -1, 1, 1, 0, 1, 0, 8),
)
_MIX_OF_TWO: Final = (
    (4, 0, 4, 0),
    (3.6, 0.8, 0.4, 7.2),
)

# Heads of four: component 0 turns with component 2 (style "half") by a quarter a position, 1 with 3 not at all. In the
# interleaved style 0 would turn with 1. The numbers are the ones above, moved to components 0 and 2; the key of token 1
# has a component 1 besides, which meets a query nowhere.
#
#          query, head 0     query, head 1    key              value
# token 0  (1, 0,  0, 0)     (0, 0, 1, 0)     (1, 0, 0, 0)     (4, 0, 0, 0)
# token 1  (0, 0, -1, 0)     (1, 0, 1, 0)     (0, 5, 1, 0)     (0, 8, 0, 0)
# turned   (1, 0,  0, 0)     (-1, 0, 1, 0)    (-1, 5, 0, 0)
_FOUR: Final = (
    (1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 4, 0, 0, 0),
    (0, 0, -1, 0, 1, 0, 1, 0, 0, 5, 1, 0, 0, 8, 0, 0),
)
_MIX_OF_FOUR: Final = (
    (4, 0, 0, 0, 4, 0, 0, 0),
    (3.6, 0.8, 0, 0, 0.4, 7.2, 0, 0),
)

# As GPT-2 does it: no rotation, a kv head for each query head.
#
#          queries         keys            values
# token 0  (1, 0) (0, 1)   (1, 0) (0, 0)   (4, 0) (10, 0)
# token 1  (0, -1) (1, 1)  (0, 1) (1, 1)   (0, 8) (0, 10)
#
# Token 1: head 0 scores (0, -1) against (1, 0) and (0, 1), 0 and -1, weights 0.75 : 0.25 of (4, 0) and (0, 8); head 1
# scores (1, 1) against (0, 0) and (1, 1), 0 and 2, weights 0.1 : 0.9 of (10, 0) and (0, 10).
_APART: Final = (
    (1, 0, 0, 1, 1, 0, 0, 0, 4, 0, 10, 0),
    (0, -1, 1, 1, 0, 1, 1, 1, 0, 8, 0, 10),
)
_MIX_APART: Final = (
    (4, 0, 10, 0),
    (3, 2, 1, 9),
)


@dataclass(frozen=True, slots=True)
class Example:
    """A primitive, and what it makes of some numbers."""

    name: str
    compute: Callable[[Kernels], torch.Tensor]
    expected: Rows
    """Worked out by hand."""

    def error(self, kernels: Kernels) -> float:
        """Return by how much the worst number is off."""
        return float((self.compute(kernels) - torch.tensor(self.expected, dtype=torch.float32)).abs().max())


def attention(rows: Rows, spec: AttentionSpec, steps: Sequence[int]) -> Callable[[Kernels], torch.Tensor]:
    """Return what attends over `rows` of queries, keys and values, so many at each of `steps`."""

    def compute(kernels: Kernels) -> torch.Tensor:
        rotary = None if spec.rope is None else Rotary(spec.rope, len(rows))
        cache = SlabCache(spec, len(rows), torch.float32, "cpu", kernels, rotary)
        parts = torch.tensor(rows, dtype=torch.float32).split(list(steps))
        return torch.cat([cache.append_attend(part.contiguous()) for part in parts])

    return compute


def _add_rms_norm(kernels: Kernels) -> torch.Tensor:
    """The sum of (2, 1) and (-1, 6) is (1, 7), whose mean square is 25: (0.2, 1.4), times (10, 5)."""
    residual, delta, weight = torch.tensor([[2.0, 1.0]]), torch.tensor([[-1.0, 6.0]]), torch.tensor([10.0, 5.0])
    return kernels.add_rms_norm(residual, delta, weight, 0.0, torch.float32)


def _add_layer_norm(kernels: Kernels) -> torch.Tensor:
    """(1, 7) has mean 4 and deviation 3: (-1, 1), times (10, 5), plus (1, 2)."""
    weight, bias = torch.tensor([10.0, 5.0]), torch.tensor([1.0, 2.0])
    return kernels.add_layer_norm(torch.tensor([[1.0, 7.0]]), None, weight, bias, 0.0, torch.float32)


def _silu_mul(kernels: Kernels) -> torch.Tensor:
    """The sigmoid of ln 3 is 3/4, of -ln 3 it is 1/4, of 0 it is 1/2."""
    log = math.log(3)
    return kernels.silu_mul(torch.tensor([[log, -log, 0.0, 4 / log, 8 / log, 5.0]]))


def examples() -> tuple[Example, ...]:
    """Return all examples: tokens at once go the way of a prompt, one by one that of a reply."""
    two = AttentionSpec(1, 2, math.log(3), Rope(torch.tensor([math.pi / 2])))
    four = AttentionSpec(1, 4, math.log(3), Rope(torch.tensor([math.pi / 2, 0.0])))
    apart = AttentionSpec(2, 2, math.log(3))
    found = []
    for name, spec, rows, mix in (
        ("two heads share keys, turned by quarters", two, _TWO, _MIX_OF_TWO),
        ("a half of each head turns with the other", four, _FOUR, _MIX_OF_FOUR),
        ("a head of keys each, not turned", apart, _APART, _MIX_APART),
    ):
        for way, steps in (("at once", (2,)), ("one by one", (1, 1))):
            found.append(Example(f"attention: {name}, {way}", attention(rows, spec, steps), mix))
    return (
        *found,
        Example("RMS norm", _add_rms_norm, ((2, 7),)),
        Example("layer norm", _add_layer_norm, ((-9, 7),)),
        Example("gated SiLU", _silu_mul, ((3, -2, 0),)),
    )
