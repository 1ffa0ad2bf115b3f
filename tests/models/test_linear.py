"""Matrix products in their forms, held to the product of the same numbers in fp64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinychat.models import linear
from tinychat.models.embedding import Coded, Table
from tinychat.models.linear import Abilities, Int4, Joined, Linear, Packed, Plain, Planned, abilities

SIZES = st.tuples(st.integers(1, 70), st.sampled_from([1, 2, 31, 32, 64, 96]), st.integers(1, 9))
relaxed = settings(deadline=None, max_examples=40)


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(made: Linear, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> float:
    """Return the largest error of a product as a share of the sum of its terms' sizes."""
    y = made.forward(x)
    assert y.dtype == made.activations == x.dtype
    assert y.shape == (x.shape[0], made.rows)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    sizes = x.double().abs() @ weight.double().abs().T + (0 if bias is None else bias.double().abs())
    return float(((y.double() - exact).abs() / sizes.clamp(min=1e-30)).max())


@relaxed
@given(st.integers(0, 99), SIZES, st.booleans(), st.sampled_from([Plain, Packed]), st.sampled_from(["fp32", "bf16"]))
def test_dense_products(seed, sizes, biased, kind, form):
    """Catches a transpose, a bias that is lost or added twice, and a packed product that reads the wrong layout."""
    if kind is Packed and not getattr(abilities(), form):
        kind = Plain
    rows, width, tokens = sizes
    dtype = linear.ACTIVATIONS[form]
    weight, x = random(seed, rows, width).to(dtype), random(seed + 1, tokens, width).to(dtype)
    bias = random(seed + 2, rows) if biased else None
    made = kind(weight, bias)
    assert made.form == form
    assert error(made, x, weight, bias) < (1e-6 if form == "fp32" else 2**-7)
    assert made.nbytes == Planned(form, rows, width, bias=biased).nbytes


@pytest.mark.skipif(not abilities().int4, reason="this machine has no int4 product")
@relaxed
@given(st.integers(0, 99), st.integers(1, 70), st.sampled_from([32, 64, 96, 256]), st.integers(1, 9), st.booleans())
def test_int4_products(seed, rows, width, tokens, biased):
    """Catches codes that change their places, zeros of the other convention, and rows that are no multiple of 16."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (rows, width), generator=generator, dtype=torch.uint8)
    scale, zero = random(seed, rows, width // 32) / 8, random(seed + 1, rows, width // 32)
    x, bias = random(seed + 2, tokens, width).bfloat16(), random(seed + 3, rows) if biased else None
    made = Int4(codes, scale, zero, bias)
    groups = codes.double().view(rows, -1, 32)
    # The numbers it multiplies by: (code - 8) * scale + (zero + 8 * scale), both in bf16.
    rounded, shifted = scale.bfloat16().double(), (zero + 8 * scale).bfloat16().double()
    weight = ((groups - 8) * rounded[..., None] + shifted[..., None]).flatten(1)
    assert error(made, x, weight, bias) < 2**-7
    assert made.nbytes == Planned("int4", rows, width, bias=biased).nbytes


@pytest.mark.skipif(not abilities().int4, reason="this machine has no int4 product")
def test_int4_keeps_every_code():
    """Read back by multiplying with the identity, each weight is its code: the 16 values, in their places."""
    codes = torch.randint(0, 16, (48, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    made = Int4(codes, torch.full((48, 2), 0.5), torch.full((48, 2), -4.0))
    assert torch.equal(made.forward(torch.eye(64, dtype=torch.bfloat16)).T.float(), codes.float() * 0.5 - 4)


def test_joined_products():
    """Catches outputs in another order, and an input or a result of one part's dtype given to all."""
    first, second = random(0, 5, 32), random(1, 7, 32).bfloat16()
    bias = random(2, 7)
    made = Joined([Plain(first), Plain(second, bias)])
    x = random(3, 4, 32)
    y = made.forward(x)
    assert (made.form, made.rows, y.dtype) == ("fp32", 12, torch.float32)
    torch.testing.assert_close(y[:, :5], x @ first.T)
    torch.testing.assert_close(y[:, 5:], x @ second.float().T + bias, rtol=0.02, atol=0.1)
    assert made.nbytes == first.nbytes + second.nbytes + 2 * 7


@relaxed
@given(st.integers(0, 99), st.integers(1, 40), st.sampled_from([32, 64, 160]), st.booleans())
def test_coded_tables_are_exact(seed, rows, width, four_bits):
    """Catches nibbles in the other order, and a scale of another group or row."""
    generator = torch.Generator().manual_seed(seed)
    low, high, dtype = (0, 16, torch.uint8) if four_bits else (-128, 128, torch.int8)
    codes = torch.randint(low, high, (rows, width), generator=generator, dtype=torch.int32).to(dtype)
    scale, zero = random(seed, rows, width // 32), random(seed + 1, rows, width // 32)
    dense = (codes.float().view(rows, -1, 32) * scale[..., None] + zero[..., None]).flatten(1)
    ids = torch.randint(0, rows, (9,), generator=generator)
    coded = Coded(codes, scale, zero)
    assert torch.equal(coded.forward(ids), dense[ids])
    assert torch.equal(Table(dense).forward(ids), dense[ids])
    assert coded.nbytes == rows * width // (2 if four_bits else 1) + rows * (width // 32) * 8


@pytest.mark.parametrize("fault", ["raises", "is absent", "gives wrong numbers"])
def test_abilities_are_tried(monkeypatch, fault):
    """Catches a product that is taken to exist: on other CPUs it raises, in other releases it is gone or has another
    layout."""

    def broken(*arguments: object) -> torch.Tensor:
        if fault == "gives wrong numbers":
            return torch.zeros(2, 32, dtype=torch.bfloat16)
        raise RuntimeError("this CPU can't")

    if fault == "is absent":
        monkeypatch.delattr(torch, "_weight_int4pack_mm_for_cpu")
        monkeypatch.delattr(torch.ops.mkldnn, "_reorder_linear_weight", raising=False)
        monkeypatch.setattr(torch, "ops", object())
    elif fault == "raises":
        monkeypatch.setattr(torch, "_weight_int4pack_mm_for_cpu", broken)
        monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", broken)
    else:
        monkeypatch.setattr(Packed, "forward", broken)
        monkeypatch.setattr(Int4, "forward", broken)
    assert abilities.__wrapped__() == Abilities(fp32=False, bf16=False, int4=False)
