"""Every type of a GGUF file in a whole model: codes kept or weights dequantised, the states are the reference's."""

from __future__ import annotations

import pytest
import torch
from gguf_files import OTHER_TYPES, TYPES
from rulers import assert_close, build, measure, reference
from tiny import Tiny

from tinychat.models.linear import Abilities, abilities

IDS = torch.randint(0, 320, (24,), generator=torch.Generator().manual_seed(2)).tolist()
KEPT = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q4_K"), "int4"),
    **dict.fromkeys(("Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4"), "int8"),
}


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_states_and_logits(tiny: Tiny, kind):
    """Catches a type that is read rightly by itself, but permuted, joined or looked up wrongly."""
    made = tiny.gguf("llama-theta", kind)
    expected = reference(made.model, IDS)
    # Random blocks of the coarsest types give states of thousands, in which long sums lose more.
    assert_close(measure(build(made.path, "fp32"), IDS), expected, rtol=2e-4, atol=2e-4)
    built = build(made.path, "auto")
    assert built.planned.nbytes == built.report.nbytes
    if kind in KEPT:  # random blocks of the others have states that bf16 rounds by more
        assert_close(measure(built, IDS), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "IQ4_NL", "MXFP4"])
@pytest.mark.parametrize("variant", ["gpt2", "llama-biases"])
def test_blocks_of_32_in_narrow_models(tiny: Tiny, variant, kind):
    """What llama.cpp takes where a row is no multiple of 256; GPT-2's matrices are turned by the converter."""
    made = tiny.gguf(variant, kind)
    assert_close(measure(build(made.path, "fp32"), IDS), reference(made.model, IDS))
    built = build(made.path, "auto")
    assert built.planned.nbytes == built.report.nbytes


@pytest.mark.parametrize("kind", [*TYPES, *OTHER_TYPES])
def test_codes_stay_where_they_can(tiny: Tiny, kind):
    """Catches a type whose codes a product takes and that is widened all the same, or the other way round."""
    can = Abilities(fp32=True, bf16=abilities().bf16, blocks=True)
    built = build(tiny.gguf("llama-theta", kind, embedding=kind).path, "auto", can=can)
    wanted = KEPT.get(kind, "bf16" if can.bf16 else "fp32")
    assert set(built.report.forms["layers"]) == set(built.report.forms["head"]) == {(kind, wanted)}


def test_a_mixture_of_k_quants(tiny: Tiny):
    """Q4_K_M, the commonest file: Q6_K for some of attn_v and ffn_down and the head."""
    made = tiny.gguf("llama-theta", "Q4_K", kinds={"attn_v": "Q6_K", "ffn_down": "Q6_K"}, embedding="Q6_K")
    expected = reference(made.model, IDS)
    assert_close(measure(build(made.path, "fp32"), IDS), expected)
    built = build(made.path, "auto")
    assert built.planned.nbytes == built.report.nbytes
    assert_close(measure(built, IDS), expected, rtol=0.05, atol=0.05)
