"""Models whose weights are quantised at load: what changes, what stays as the file has it, and how it is said."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoints import IN_GGUF
from driven import Driven, driven
from rulers import build, divergence, measure, reference, state_error
from tiny import Tiny

from tinychat.engine.loading import _left_dense
from tinychat.kernels import plain
from tinychat.models.base import Report
from tinychat.models.embedding import Rows, Table
from tinychat.models.linear import Blocked, abilities
from tinychat.models.policy import Policy
from tinychat.weights import open_checkpoint

IDS = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(1)).tolist()
pytestmark = pytest.mark.skipif(not abilities().blocks, reason="there is no product by blocks without Numba")
BOUNDS = {("int8", "gpt2"): (0.02, 0.002), ("int8", "llama"): (0.06, 0.015), ("int4", "gpt2"): (0.2, 0.25)}
"""(form, family) -> most that states and the distribution of the next token may be off. Measured: 0.012 and 0.0011,
0.037 and 0.008, 0.14 and 0.16. The tiny Llama's random weights amplify errors of 4 bits too much to prove anything."""


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


def head_of(built):
    return built.model.lm_head


def embedding_of(built):
    return built.model.embed_tokens if hasattr(built.model, "embed_tokens") else built.model.wte


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("variant", ["gpt2", "llama", "llama-untied", "llama-biases"])
@pytest.mark.parametrize("gguf", [False, True])
def test_dense_files(tiny: Tiny, variant, dtype, gguf):
    """Catches a transposed matrix quantised along its rows, rows out of their order, a bias that is lost."""
    made = tiny.gguf(variant, "F32") if gguf else tiny.safetensors(variant, "F32")
    expected = reference(made.model, IDS)
    built = build(made.path, dtype, plain)
    assert {form for _, form in built.report.forms["layers"]} == {dtype}
    assert {form for _, form in built.report.forms["head"]} == {Policy("auto", abilities()).dense}
    measured = measure(built, IDS)
    if bounds := BOUNDS.get((dtype, variant.partition("-")[0])):
        assert state_error(measured, expected) < bounds[0]
        assert divergence(measured, expected) < bounds[1]


@pytest.mark.parametrize(("dtype", "kind"), [("int4", "Q4_0"), ("int4", "Q4_1"), ("int8", "Q8_0")])
@pytest.mark.parametrize("variant", IN_GGUF)
def test_what_is_in_the_form_stays(tiny: Tiny, variant, dtype, kind):
    """The same numbers as `auto` to the last bit: catches codes that are made anew where the file has them."""
    path = tiny.gguf(variant, kind).path
    ours, auto = (measure(build(path, asked), IDS).logits for asked in (dtype, "auto"))
    assert torch.equal(ours, auto)


def test_4_bits_become_8(tiny: Tiny):
    """As a benchmark beside Q8_0 needs it; nearly nothing is lost."""
    made = tiny.gguf("gpt2", "Q4_1")
    built = build(made.path, "int8")
    assert built.report.forms["layers"].keys() == {("Q4_1", "int8")}
    assert divergence(measure(built, IDS), reference(made.model, IDS)) < 0.002


@pytest.mark.parametrize(
    ("kind", "dtype", "head", "form", "rows"),
    [
        ("Q8_0", "auto", "auto", "int8", "shared"),
        ("Q8_0", "int4", "auto", "int8", "shared"),
        ("Q8_0", "auto", "bf16", "bf16", "own blocks"),
        ("Q8_0", "auto", "int4", "int4", "own blocks"),
        ("Q8_0", "bf16", "int8", "int8", "shared"),
        ("Q8_0", "fp32", "auto", "fp32", "tiles"),
        ("F32", "int8", "auto", "bf16", "tiles"),
        ("F32", "int8", "int8", "int8", "table"),
        ("F32", "auto", "int8", "int8", "table"),
        ("F32", "fp32", "int4", "int4", "table"),
    ],
)
def test_heads(tiny: Tiny, kind, dtype, head, form, rows):
    """The head is what was asked for, and the embedding it is tied to is looked up as stored: never from codes that the
    head alone was given."""
    if "bf16" in (form, dtype) and not abilities().bf16:
        pytest.skip("this machine has no packed bf16 product")
    made = tiny.gguf("llama", "Q8_0" if kind == "Q8_0" else "F32", embedding=kind)
    built = build(made.path, dtype, head=head)
    assert {form for _, form in built.report.forms["head"]} == {form}
    assert built.planned.nbytes == built.report.nbytes
    embedding = embedding_of(built)
    if rows == "tiles" and not (abilities().fp32_tiles if form == "fp32" else abilities().bf16_tiles):
        rows = "table"
    assert isinstance(embedding, Table if rows == "table" else Rows)
    if rows in ("shared", "tiles"):
        assert embedding._matrix is (head_of(built).matrix if rows == "shared" else head_of(built))
        assert embedding.nbytes == 0
    table = made.model.get_input_embeddings().weight
    exact = table.bfloat16().float() if embedding.dtype == torch.bfloat16 else table
    ids = torch.arange(0, 320, 7)
    assert torch.equal(embedding.forward(ids), exact[ids])


@pytest.mark.parametrize(("shape", "transposed"), [((64, 100), False), ((100, 64), True)])
def test_a_width_that_no_group_divides(shape, transposed):
    """It stays dense, and the person is told how much did: catches a crash, or the last columns left out."""
    stored: Any = SimpleNamespace(shape=shape, type="F32")
    policy = Policy("int4", abilities(), head="int8")
    assert policy.form(stored, transposed=transposed) == policy.dense
    assert policy.form(stored, transposed=not transposed) == "int4"
    forms = {"layers": {("F32", "int4"): 300, ("F32", "bf16"): 100}, "head": {("F32", "bf16"): 50}}
    layers, head = _left_dense(policy, Report(forms=forms), abilities())
    assert layers.startswith(f"25% of the layers' weights became {policy.dense} instead of int4: the matrices' width")
    assert head.startswith(f"100% of the head became {policy.dense} instead of int8")


@pytest.mark.parametrize(
    ("kind", "more", "reason"),
    [
        ("Q4_1", {"dtype": "int8"}, "int8 (file Q4_1, requantised), head int8 (file Q8_0)"),
        ("Q4_1", {"dtype": "int4"}, "int4 (file Q4_1), head int8 (file Q8_0)"),
        ("Q4_1", {"dtype": "auto", "head": "int4"}, "int4 (file Q4_1), head int4 (file Q8_0, requantised)"),
        ("F16", {"dtype": "int4", "head": "int8"}, "int4 (file F16, quantised), head int8 (file F16, quantised)"),
    ],
)
def test_what_became_of_it_is_said(tiny: Tiny, engine, kind, more, reason):
    """Catches codes that were changed without a word."""
    info = engine.load(tiny.gguf("llama", kind).path, **more).info
    assert info.dtype_reason == reason
    assert info.notices == ()
    assert engine.reply(count=5).new_tokens == 5


def test_quantised_rows_are_read_in_parts(tiny: Tiny, monkeypatch):
    """Catches parts that overlap, leave rows out, or are put together in another order."""
    path = tiny.safetensors("llama").path
    whole = measure(build(path, "int8"), IDS).logits
    monkeypatch.setattr("tinychat.models.policy._CHUNK", 5 * 64)
    assert torch.equal(measure(build(path, "int8"), IDS).logits, whole)


def test_blocks_are_the_nearest_codes(tiny: Tiny):
    """The model's own matrix, read back, is the file's rounded to its grid."""
    made = tiny.safetensors("gpt2")
    built = build(made.path, "int8")
    product = built.model.layers[1].mlp.down_proj
    assert isinstance(product, Blocked)
    with open_checkpoint(made.path) as checkpoint:
        weight = next(t for name, t in checkpoint.tensors.items() if name.endswith("h.1.mlp.c_proj.weight"))
        exact = weight.dense(torch.float32).T
    step = exact.reshape(len(exact), -1, 32).abs().amax(-1).repeat_interleave(32, dim=1) / 127
    assert bool(((product.matrix.dense() - exact).abs() <= 0.6 * step).all())
