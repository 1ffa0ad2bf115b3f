"""The real smollm2 beside transformers' model of its dequantised weights."""

from __future__ import annotations

import pytest
import torch
from rulers import (
    KERNELS,
    Measured,
    assert_close,
    assert_greedy,
    build,
    card,
    divergence,
    greedy,
    measure,
    reference,
    state_error,
)

from tinychat.engine.opening import open_model
from tinychat.kernels import fused, plain
from tinychat.models.linear import abilities

pytestmark = pytest.mark.model

TEXT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nName three rivers of Europe, and say in one sentence where each begins. Then compute 12 * 17.\n"
    "Zähle bis fünf: 日本語も少し。<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(autouse=True)
def both_cores(one_thread):
    """A model of this size gains by a second thread."""
    torch.set_num_threads(2)
    fused.set_threads(2)


@pytest.fixture(scope="module")
def ids(smollm2_path):
    opened = open_model(smollm2_path, card(smollm2_path))
    opened.checkpoint.close()
    return opened.tokenizer.encode_with_control(TEXT)


@pytest.fixture(scope="module")
def expected(smollm2_reference, ids) -> Measured:
    return reference(smollm2_reference, ids)


@pytest.fixture(scope="module")
def exact(smollm2_path):
    return build(smollm2_path, "fp32")


def test_states_and_logits_in_fp32(exact, ids, expected):
    """All 30 layers, in one pass and in two chunks; states grow to 20,000 and more here, where a tiny model's don't."""
    assert len(ids) > 70
    assert float(expected.hidden[20].abs().max()) > 5000
    assert_close(measure(exact, ids), expected)
    assert_close(measure(exact, ids, 48), expected)


def test_greedy_ids_in_fp32(exact, smollm2_path, smollm2_reference, ids):
    """Sixty tokens, with both kernels, are transformers' own."""
    for kernels in KERNELS:
        built = exact if kernels is plain else build(smollm2_path, "fp32", kernels)
        assert_greedy(smollm2_reference, ids, greedy(built.context(256), ids, 60))


@pytest.mark.skipif(not abilities().blocks, reason="there is no product by blocks without Numba")
@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.NAME)
def test_int4_keeps_the_codes(smollm2_path, ids, expected, kernels):
    """In `auto` the activations are rounded to 16 bits and the cache to bf16, the weights not at all.

    Measured, on 78 positions: states off by 0.7 %, divergence 1.8e-4 nats, every best token the same.
    """
    built = build(smollm2_path, "auto", kernels)
    assert built.report.forms["layers"].keys() == {("Q4_1", "int4")}
    measured = measure(built, ids, None if kernels is KERNELS[0] else 1)
    assert state_error(measured, expected) < 0.015
    assert divergence(measured, expected) < 5e-4
    agreement = float((measured.logits.argmax(-1) == expected.logits.argmax(-1)).float().mean())
    assert agreement > 0.96
