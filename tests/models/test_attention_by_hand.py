"""The examples worked out on paper, with both kernels; and that each would see a mistake."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from rulers import KERNELS

from tinychat.models import by_hand
from tinychat.models.cache import AttentionSpec
from tinychat.models.rope import Rope


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
@pytest.mark.parametrize("example", by_hand.examples(), ids=lambda example: example.name)
def test_by_hand(example, kernels):
    """Catches a rotation of the wrong pairs or the wrong way, a mask that shows the future, a wrong kv head, a
    forgotten scale, keys that are cached before they are turned, heads that read each other's keys, a norm of the
    residual before the sum, a gate that takes the other half."""
    computed = example.compute(kernels)
    expected = torch.tensor(example.expected, dtype=torch.float32)
    torch.testing.assert_close(computed, expected, rtol=0, atol=by_hand.TOLERANCE)


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 1.0},
        {"rope": None},
        {"rope": Rope(torch.tensor([-math.pi / 2]))},
        {"window": 1},
        {"softcap": 1.0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_example_sees_a_mistake(change):
    """An example that holds for wrong attention, too, would prove nothing."""
    spec = replace(AttentionSpec(1, 2, math.log(3), Rope(torch.tensor([math.pi / 2]))), **change)
    example = by_hand.examples()[0]
    rows = (1, 0, 0, 1, 1, 0, 4, 0), (0, -1, 1, 1, 0, 1, 0, 8)
    wrong = replace(example, compute=by_hand.attention(rows, spec, (2,)))
    assert example.error(KERNELS[0]) <= by_hand.TOLERANCE
    assert wrong.error(KERNELS[0]) > 0.1
