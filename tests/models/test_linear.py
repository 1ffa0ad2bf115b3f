"""Matrix products in their forms, held to the product of the same numbers in fp64."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from typing import Final

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rulers import NO_ABILITIES

from tinychat.kernels import block_product, dense_product
from tinychat.models import linear
from tinychat.models.blocks import BlockMatrix, block_bytes
from tinychat.models.embedding import Rows, Table
from tinychat.models.linear import (
    COPY_FROM,
    Abilities,
    Blocked,
    Copied,
    Joined,
    Linear,
    Packed,
    Plain,
    Tiled,
    abilities,
)
from tinychat.ranges import SAMPLER_RANGES

SIZES = st.tuples(st.integers(1, 70), st.sampled_from([1, 2, 31, 32, 64, 96]), st.integers(1, 9))
needs_blocks = pytest.mark.skipif(not abilities().blocks, reason="there is no product by blocks without Numba")
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
    assert made.nbytes == rows * (width + biased) * dtype.itemsize


@needs_blocks
@relaxed
@given(
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(0, 99),
    st.integers(1, 70),
    st.sampled_from([2, 6, 32, 96, 576]),
    st.integers(1, 19),
    st.booleans(),
)
def test_tiles(dtype, seed, rows, width, tokens, biased):
    """Catches columns that change places, rows that are no multiple of 16, the last tokens of a handful, and a token
    whose result depends on its company, which would let speculation say something else than plain decoding."""
    weight, x = random(seed, rows, width).to(dtype), random(seed + 1, tokens, width)
    bias = random(seed + 2, rows).to(dtype) if biased else None
    made = Tiled(weight, bias)
    assert error(made, x, weight, bias) < 1e-6
    assert made.nbytes == dtype.itemsize * ((rows + -rows % 16) * width + (rows if biased else 0))
    together = made.forward(x)
    assert all(torch.equal(made.forward(x[i : i + 1]), together[i : i + 1]) for i in range(tokens))
    ids = torch.arange(rows).flip(0)
    assert torch.equal(made.lookup(ids), weight[ids].float())


@needs_blocks
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_tiles_show_what_is_not_finite(dtype, tokens, value):
    """Catches arithmetic that passes over a NaN in the activations: a damaged model would go on talking."""
    x = torch.ones(tokens, 64)
    x[-1, 3] = value
    assert not bool(torch.isfinite(Tiled(random(0, 32, 64).to(dtype)).forward(x)[-1]).any())


def blocks(seed: int, rows: int, width: int, bits: int) -> tuple[BlockMatrix, torch.Tensor]:
    """Return random blocks of a matrix, and the matrix."""
    generator = torch.Generator().manual_seed(seed)
    low, high, dtype = (0, 16, torch.uint8) if bits == 4 else (-128, 128, torch.int8)
    codes = torch.randint(low, high, (rows, width), generator=generator, dtype=torch.int32).to(dtype)
    # Half precision, as files have it.
    scale = (random(seed, rows, width // 32) / 8).half().float()
    zero = random(seed + 1, rows, width // 32).half().float() if bits == 4 else torch.zeros_like(scale)
    dense = (codes.float().view(rows, -1, 32) * scale[..., None] + zero[..., None]).flatten(1)
    return BlockMatrix(codes, scale, zero), dense


def rounding(matrix: BlockMatrix, dense: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the most that a product by blocks may be off, fp64 [T, rows].

    An activation is off by half a step of its group, which is the largest of the group / 32767; multiplying by the
    reciprocal of the step, and rounding both, adds less than 1 / 128 of one. What follows is fp32: of a group, code *
    scale and zero are summed apart, so their sizes count, and none of their terms goes through more than 2 roundings a
    group (it and the sum so far) and 8 besides, of 2^-24 each.
    """
    groups = matrix.width // 32
    steps = (x.double().view(len(x), groups, 32).abs().amax(2) / 32767).repeat_interleave(32, 1)
    sizes = dense.double().abs()
    if matrix.zeros is not None:
        zeros = matrix.zeros.double().transpose(1, 2).flatten(0, 1)[: matrix.rows].repeat_interleave(32, 1)
        sizes = (dense - zeros).abs() + zeros.abs()
    largest = (x.double().abs() + steps) @ sizes.T + (0 if bias is None else bias.double().abs())
    return (0.5 + 2**-7) * steps @ dense.double().abs().T + (2 * groups + 8) * 2**-24 * largest


@needs_blocks
@relaxed
@example(seed=44, rows=44, width=32, tokens=4, bits=4, biased=False)  # one group a row: little averages out
@given(
    st.integers(0, 99),
    st.integers(1, 70),
    st.sampled_from([32, 64, 96, 256, 1536]),
    st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 33]),
    st.sampled_from([4, 8]),
    st.booleans(),
)
def test_products_by_blocks(seed, rows, width, tokens, bits, biased):
    """Catches codes that change their places, zeros of the other convention, rows that are no multiple of 16, and the
    last tokens of a handful."""
    matrix, dense = blocks(seed, rows, width, bits)
    x, bias = random(seed + 2, tokens, width), random(seed + 3, rows) if biased else None
    made = Blocked(matrix, bias)
    assert made.form == f"int{bits}"
    y, exact = made.forward(x).double(), x.double() @ dense.double().T + (0 if bias is None else bias.double())
    assert bool(((y - exact).abs() <= rounding(matrix, dense, x, bias)).all())
    assert made.nbytes == block_bytes(bits, rows, width) + (4 * rows if biased else 0)


@needs_blocks
@pytest.mark.parametrize("width", [32, 64, 128, 192, 320, 576, 960, 1536, 2048, 4096])
def test_one_token_of_any_width(width):
    """Catches memory that is given back before the product has read it: which sizes are reused at once is the
    allocator's affair (it was 576)."""
    matrix, dense = blocks(0, 64, width, 4)
    made = Blocked(matrix)
    for seed in range(20):
        x = random(seed, 1, width)
        torch.testing.assert_close(made.forward(x), x @ dense.T, rtol=1e-3, atol=1e-2 * width**0.5)


@needs_blocks
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_keep_every_code(bits):
    """Read back by multiplying with the identity, each weight is what the file says, to the last bits of fp32."""
    matrix, dense = blocks(0, 48, 96, bits)
    torch.testing.assert_close(Blocked(matrix).forward(torch.eye(96)).T, dense, rtol=1e-6, atol=1e-6)
    assert torch.equal(matrix.dense(), dense)


@relaxed
@given(st.integers(0, 99), st.integers(1, 70), st.sampled_from([32, 96]), st.sampled_from([4, 8]), st.integers(1, 6))
def test_a_matrix_made_dense_in_parts(seed, rows, width, bits, tiles):
    """Catches parts that overlap or are left out, rows of padding, and a rounding other than to the nearest."""
    matrix, dense = blocks(seed, rows, width, bits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tinychat.models.blocks._CHUNK", tiles * 16 * width)
        assert torch.equal(matrix.dense(), dense)
        assert torch.equal(matrix.dense(torch.bfloat16), dense.bfloat16())


@needs_blocks
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_give_a_token_the_same_numbers_in_any_company(bits):
    """A prompt in chunks, a token alone, eight drafts at once: the same but for the last bits of a sum."""
    matrix, _ = blocks(1, 50, 128, bits)
    made, x = Blocked(matrix), random(5, 13, 128)
    together = made.forward(x)
    for size in (1, 2, 3, 4, 5, 8):
        apart = torch.cat([made.forward(part.contiguous()) for part in x.split(size)])
        torch.testing.assert_close(apart, together, rtol=1e-6, atol=1e-5)


@needs_blocks
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tokens", [1, 5])
def test_blocks_show_what_is_not_finite(bits, tokens):
    """Catches a NaN or an infinity that rounding to 16 bits turns into a number; the other tokens don't see it."""
    matrix, dense = blocks(2, 33, 96, bits)
    for bad in (float("nan"), float("inf"), float("-inf")):
        for place in (0, 31, 32, 95):
            x = random(6, tokens, 96)
            x[-1, place] = bad
            y = Blocked(matrix).forward(x)
            assert not bool(y[-1].isfinite().any())
            torch.testing.assert_close(y[:-1], x[:-1] @ dense.T, rtol=1e-3, atol=1e-2)


@needs_blocks
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-25, 1e-6, 1e6, 1e30])
@pytest.mark.parametrize("tokens", [1, 5])
def test_blocks_at_any_size(size, tokens):
    """Catches a division by a largest activation of zero, and sums that overflow 32 bits: all at their largest."""
    for bits in (4, 8):
        codes = torch.full((16, 1536), 15 if bits == 4 else -128, dtype=torch.uint8 if bits == 4 else torch.int8)
        matrix = BlockMatrix(codes, torch.full((16, 48), 0.5), torch.zeros(16, 48))
        y = Blocked(matrix).forward(torch.full((tokens, 1536), size))
        torch.testing.assert_close(
            y, torch.full((tokens, 16), size * 1536 * (7.5 if bits == 4 else -64)), rtol=1e-4, atol=1e-24
        )


needs_copies = pytest.mark.skipif(
    not (abilities().blocks and abilities().bf16), reason="copies need both the product by blocks and the packed one"
)


@needs_copies
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("biased", [False, True])
def test_copies(bits, biased):
    """Few tokens are multiplied by the blocks, many by the dense matrix in bf16, both to the last bit.

    Catches the wrong side of the limit, what speculation checks at once computed otherwise than one by one, and bytes
    that aren't counted.
    """
    matrix, dense = blocks(7, 50, 96, bits)
    bias = random(8, 50) if biased else None
    made, alone, packed = Copied(matrix, bias), Blocked(matrix, bias), Packed(dense.bfloat16())
    assert (made.form, made.rows, made.activations) == (alone.form, 50, torch.float32)
    assert made.copy_bytes == 2 * 50 * 96
    assert made.nbytes == alone.nbytes + made.copy_bytes
    assert alone.copy_bytes == 0
    assert SAMPLER_RANGES["speculate"].high + 1 < COPY_FROM
    for tokens in (1, 2, 9, COPY_FROM - 1):
        x = random(tokens, tokens, 96)
        assert torch.equal(made.forward(x), alone.forward(x))
    for tokens in (COPY_FROM, COPY_FROM + 1, 256):
        x = random(tokens, tokens, 96)
        y = made.forward(x)
        assert torch.equal(y, packed.forward(x.bfloat16()).float() + (0 if bias is None else bias))
        assert error(made, x, dense, bias) < 2**-7


@needs_copies
def test_copies_show_what_is_not_finite():
    """Catches a NaN that vanishes on the way of long prompts."""
    matrix, dense = blocks(2, 33, 96, 4)
    x = random(6, COPY_FROM, 96)
    x[-1, 5] = float("nan")
    y = Copied(matrix).forward(x)
    assert not bool(y[-1].isfinite().any())
    torch.testing.assert_close(y[:-1], x[:-1] @ dense.T, rtol=0.05, atol=0.5)


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_products_take_what_another_form_gave(given):
    """Catches bf16 that is read as fp32, past its end: in one layer a file may hold matrices of several types."""
    matrix, dense = blocks(3, 32, 64, 8)
    x = (random(4, 64, 64) * 8).round().div(8).to(given)
    forms = [Plain(dense), Plain(dense.bfloat16())]
    forms += [Packed(dense)] if abilities().fp32 else []
    forms += [Packed(dense.bfloat16())] if abilities().bf16 else []
    forms += [Blocked(matrix)] if abilities().blocks else []
    forms += [Copied(matrix)] if abilities().blocks and abilities().bf16 else []
    for made in forms:
        for tokens in (1, 3, 64):
            y = made.forward(x[:tokens])
            assert y.dtype == made.activations
            off = (y.double() - x[:tokens].double() @ dense.double().T).abs()
            assert float((off / (x[:tokens].double().abs() @ dense.double().abs().T)).max()) < 2**-6


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
@given(st.integers(0, 99), st.integers(1, 40), st.sampled_from([32, 64, 160]), st.sampled_from([4, 8]))
def test_tables_are_exact(seed, rows, width, bits):
    """Catches nibbles in the other order, and a scale of another group or row."""
    matrix, dense = blocks(seed, rows, width, bits)
    ids = torch.randint(0, rows, (9,), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(Rows(matrix, shared=False).forward(ids), dense[ids])
    assert torch.equal(Table(dense).forward(ids), dense[ids])


def test_scales_that_half_precision_doesn_t_hold():
    """They stay in fp32: none is rounded."""
    codes = torch.randint(0, 16, (16, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    scale, zero = torch.full((16, 1), 1 / 3), torch.full((16, 1), -70000.0)
    assert torch.equal(BlockMatrix(codes, scale, zero).dense(), codes.float() * scale + zero)


def tried() -> Abilities:
    """Return what is found where every ability is tried anew."""
    here = abilities.__wrapped__()
    return Abilities(*(getattr(here, field.name) for field in fields(Abilities)))


SETTLED: Final = tried()


@pytest.mark.parametrize("fault", ["raises", "is absent", "gives wrong numbers"])
def test_abilities_are_tried(monkeypatch, fault):
    """Catches a product that is taken to exist: on other CPUs it raises, in other releases it is gone or has another
    layout."""

    def broken(*arguments: object) -> torch.Tensor:
        if fault == "gives wrong numbers":
            return torch.zeros(len(arguments[1]), 33)
        raise RuntimeError("this CPU can't")

    if fault == "is absent":
        monkeypatch.setitem(sys.modules, "tinychat.kernels.block_product", None)
        monkeypatch.setitem(sys.modules, "tinychat.kernels.dense_product", None)
        monkeypatch.setattr(torch, "ops", object())
    elif fault == "raises":
        monkeypatch.setattr(block_product.BlockProduct, "__call__", broken)
        monkeypatch.setattr(dense_product.DenseProduct, "__call__", broken)
        monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", broken)
    else:
        for kind in (Packed, Blocked, Tiled):
            monkeypatch.setattr(kind, "forward", broken)
    assert tried() == NO_ABILITIES


def test_nothing_is_tried_before_it_is_asked_for(monkeypatch):
    """Catches a chat in fp32 that waits until the products by codes are compiled: ten seconds, the first time."""
    made: list[str] = []
    for kind in (Packed, Blocked, Tiled):
        monkeypatch.setattr(kind, "forward", lambda self, x: made.append(type(self).__name__) or x)
    here = abilities.__wrapped__()
    assert made == []
    assert not here.fp32
    assert made == ["Packed"]


@needs_blocks
@pytest.mark.parametrize("form", ["fp32", "bf16"])
@pytest.mark.parametrize("tokens", [1, 5])
def test_every_kind_of_tile_is_tried(monkeypatch, form, tokens):
    """Catches a probe of one form, or of one token, that answers for all: they are four compiled functions."""
    real = Tiled.forward

    def faulty(self: Tiled, x: torch.Tensor) -> torch.Tensor:
        return real(self, x) + (1 if self.form == form and len(x) == tokens else 0)

    monkeypatch.setattr(Tiled, "forward", faulty)
    assert tried() == replace(SETTLED, **{f"{form}_tiles": False})


@needs_blocks
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tokens", [1, 5])
def test_every_kind_of_block_product_is_tried(monkeypatch, bits, tokens):
    """Catches a probe of one kind that answers for all: codes of 4 and 8 bits, one token and several, are four
    compiled functions, and each can be the one that is wrong."""
    real = Blocked.forward

    def faulty(self: Blocked, x: torch.Tensor) -> torch.Tensor:
        return real(self, x) + (1 if self.matrix.bits == bits and len(x) == tokens else 0)

    monkeypatch.setattr(Blocked, "forward", faulty)
    assert tried() == replace(SETTLED, blocks=False)


def test_dense_products_are_tried_by_one_token_and_by_several(monkeypatch):
    """Catches a product that is right for a prompt and wrong for a token, or has lost a row."""
    real = Packed.forward
    for tokens in (1, 5):
        for wrong in (lambda y: y * 1.1, lambda y: y[:, :-1]):
            monkeypatch.setattr(
                Packed, "forward", lambda self, x, n=tokens, w=wrong: w(real(self, x)) if len(x) == n else real(self, x)
            )
            found = tried()
            assert (found.fp32, found.bf16, found.blocks) == (False, False, SETTLED.blocks)
