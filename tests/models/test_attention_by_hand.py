"""Attention worked out on paper: two tokens, two query heads that share one kv head.

Angles are quarter turns, so that a rotation is (a, b) -> (-b, a); the scale is ln 3, so that a score of s weighs 3^s.
"""

from __future__ import annotations

import math

import pytest
import torch
from rulers import KERNELS

from tinychat.models.cache import AttentionSpec, SlabCache
from tinychat.models.rope import Rope, Rotary

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
TWO = [
    [1, 0, 0, 1, 1, 0, 4, 0],
    [0, -1, 1, 1, 0, 1, 0, 8],
]
MIX_OF_TWO = [
    [4, 0, 4, 0],
    [3.6, 0.8, 0.4, 7.2],
]

# Heads of four: component 0 turns with component 2 (style "half") by a quarter a position, 1 with 3 not at all. In the
# interleaved style 0 would turn with 1. The numbers are the ones above, moved to components 0 and 2; the key of token 1
# has a component 1 besides, which meets a query nowhere.
#
#          query, head 0     query, head 1    key              value
# token 0  (1, 0,  0, 0)     (0, 0, 1, 0)     (1, 0, 0, 0)     (4, 0, 0, 0)
# token 1  (0, 0, -1, 0)     (1, 0, 1, 0)     (0, 5, 1, 0)     (0, 8, 0, 0)
# turned   (1, 0,  0, 0)     (-1, 0, 1, 0)    (-1, 5, 0, 0)
FOUR = [
    [1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 4, 0, 0, 0],
    [0, 0, -1, 0, 1, 0, 1, 0, 0, 5, 1, 0, 0, 8, 0, 0],
]
MIX_OF_FOUR = [
    [4, 0, 0, 0, 4, 0, 0, 0],
    [3.6, 0.8, 0, 0, 0.4, 7.2, 0, 0],
]


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
@pytest.mark.parametrize("steps", [(2,), (1, 1)], ids=["at once", "one by one"])
@pytest.mark.parametrize(
    ("angles", "rows", "expected"),
    [([math.pi / 2], TWO, MIX_OF_TWO), ([math.pi / 2, 0.0], FOUR, MIX_OF_FOUR)],
    ids=["two components", "four components"],
)
def test_two_tokens(kernels, steps, angles, rows, expected):
    """Catches a rotation of the wrong pairs or the wrong way, a mask that shows the future, a wrong kv head, a
    forgotten scale, and keys that are cached before they are turned."""
    size = 2 * len(angles)
    cache = SlabCache(
        AttentionSpec(1, size, math.log(3)), 2, torch.float32, "cpu", kernels, Rotary(Rope(torch.tensor(angles)), 2)
    )
    qkv = torch.tensor(rows, dtype=torch.float32)
    mix = torch.cat([cache.append_attend(part.contiguous()) for part in qkv.split(steps)])
    torch.testing.assert_close(mix, torch.tensor(expected, dtype=torch.float32), rtol=0, atol=2e-6)
    assert cache.length == 2


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
@pytest.mark.parametrize("steps", [(2,), (1, 1)], ids=["at once", "one by one"])
def test_two_tokens_without_rotation(kernels, steps):
    """As GPT-2 does it, a kv head for each query head; catches heads that read each other's keys.

    Token 1: head 0 scores (0, -1) against (1, 0) and (0, 1), 0 and -1, weights 0.75 : 0.25 of (4, 0) and (0, 8); head 1
    scores (1, 1) against (0, 0) and (1, 1), 0 and 2, weights 0.1 : 0.9 of (10, 0) and (0, 10).
    """
    cache = SlabCache(AttentionSpec(2, 2, math.log(3)), 2, torch.float32, "cpu", kernels, None)
    queries, keys, values = [[1, 0, 0, 1], [0, -1, 1, 1]], [[1, 0, 0, 0], [0, 1, 1, 1]], [[4, 0, 10, 0], [0, 8, 0, 10]]
    qkv = torch.cat([torch.tensor(part, dtype=torch.float32) for part in (queries, keys, values)], dim=1)
    mix = torch.cat([cache.append_attend(part.contiguous()) for part in qkv.split(steps)])
    torch.testing.assert_close(mix, torch.tensor([[4, 0, 10, 0], [3, 2, 1, 9]], dtype=torch.float32), rtol=0, atol=2e-6)
