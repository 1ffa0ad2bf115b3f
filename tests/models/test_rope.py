"""Every variant of RoPE has transformers' angles, however its numbers are spelt."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tinychat.errors import CheckpointError, UnsupportedModel
from tinychat.models.rope import Rotary, llama3
from tinychat.models.rope_settings import TYPES, RopeSettings

FACTORS = st.floats(1.0, 64.0)
MAYBE = st.booleans()


@st.composite
def configs(draw: st.DrawFn) -> dict[str, object]:
    """Draw a config.json whose rope_parameters name a scaled variant; what may be absent sometimes is."""
    kind = draw(st.sampled_from([kind for kind in TYPES if kind != "default"]))
    size = draw(st.sampled_from([16, 64, 80, 128]))
    original = draw(st.sampled_from([64, 2048, 4096]))
    parameters: dict[str, object] = {"rope_type": kind, "rope_theta": draw(st.sampled_from([1e4, 5e5, 1e6]))}
    if draw(MAYBE):
        parameters["partial_rotary_factor"] = draw(st.sampled_from([0.25, 0.5, 1.0]))
    if kind != "longrope" or draw(MAYBE):
        parameters["factor"] = draw(FACTORS)
    match kind:
        case "llama3":
            parameters |= {"low_freq_factor": draw(st.floats(0.5, 2.0)), "high_freq_factor": draw(st.floats(3.0, 8.0))}
        case "longrope":
            pairs = int(size * float(str(parameters.get("partial_rotary_factor", 1.0)))) // 2
            many = st.lists(FACTORS, min_size=pairs, max_size=pairs)
            parameters |= {"short_factor": draw(many), "long_factor": draw(many)}
        case "yarn":
            for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
                if draw(MAYBE):
                    parameters[name] = draw(st.floats(16, 64) if name == "beta_fast" else st.floats(0.5, 2.0))
            if draw(MAYBE):
                parameters["truncate"] = draw(MAYBE)
    if kind in ("yarn", "longrope") and draw(MAYBE):
        parameters["attention_factor"] = draw(st.floats(0.5, 2.0))
    if kind != "dynamic" and draw(MAYBE):
        parameters["original_max_position_embeddings"] = original
    return {
        "hidden_size": 4 * size,
        "num_attention_heads": 4,
        "max_position_embeddings": original * draw(st.sampled_from([1, 8, 32])),
        "rope_parameters": parameters,
    }


def old_spelling(config: dict[str, object]) -> dict[str, object]:
    """Return the config as transformers 4 wrote it."""
    parameters = dict(config["rope_parameters"])  # type: ignore[call-overload]
    top = {name: parameters.pop(name) for name in ("rope_theta", "partial_rotary_factor") if name in parameters}
    parameters["type"] = parameters.pop("rope_type")
    return (
        {key: value for key, value in config.items() if key != "rope_parameters"} | top | {"rope_scaling": parameters}
    )


@settings(max_examples=150, deadline=None)
@given(config=configs(), old=MAYBE, stretch=st.sampled_from([0.5, 1, 2, 5]))
def test_angles(config, old, stretch):
    """Catches a formula that is off anywhere, a default of ours that is not transformers', a key read in one spelling
    alone; short sequences and long ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = LlamaConfig(**config)
    kind = reference.rope_parameters["rope_type"]
    # Our base of dynamic scaling moves in steps; at a multiple of 256 it is transformers'.
    total = max(256, int(reference.max_position_embeddings * stretch) // 256 * 256)
    inv_freq, factor = ROPE_INIT_FUNCTIONS[kind](reference, "cpu", seq_len=total)
    ours = RopeSettings.from_json(old_spelling(config) if old else config, "here", size=reference.head_dim).rope()
    assert ours.factor == pytest.approx(factor, rel=1e-6)
    torch.testing.assert_close(ours.angles(ours.regime(total)), inv_freq, rtol=2e-5, atol=1e-12)


def test_gguf_factors_are_llama3():
    """Catches factors that multiply: llama.cpp's converter stores what the plain angles are divided by."""
    plain = RopeSettings(5e5, 64, 131072).rope()
    scaled = llama3(plain.inv_freq, factor=32.0, low=1.0, high=4.0, original=8192)
    read = RopeSettings(5e5, 64, 131072).rope({"rope_freqs": plain.inv_freq / scaled})
    torch.testing.assert_close(read.inv_freq, scaled)


def gguf(names: tuple[str, ...] = (), **keys: object) -> RopeSettings:
    metadata = {"llama.context_length": 4096} | {f"llama.rope.{k.replace('__', '.')}": v for k, v in keys.items()}
    return RopeSettings.from_gguf(metadata, "llama", names, "here", size=64)


@pytest.mark.parametrize(
    ("keys", "parameters"),
    [
        ({}, {"rope_type": "default"}),
        ({"scaling__type": "none", "scaling__factor": 4.0}, {"rope_type": "default"}),
        ({"scaling__type": "linear", "scaling__factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"scaling__factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 1024},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
        ),
        (
            {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_beta_fast": 20.0, "freq_base": 1e6},
            {"rope_type": "yarn", "factor": 4.0, "beta_fast": 20.0, "rope_theta": 1e6},
        ),
        (
            {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_log_multiplier": 0.5},
            {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5},
        ),
        (
            {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_attn_factor": 1.5},
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5},
        ),
        ({"dimension_count": 32}, {"rope_type": "default", "partial_rotary_factor": 0.5}),
    ],
)
def test_gguf_keys(keys, parameters):
    """Catches a key of llama.cpp's that is passed over, or means something else than config.json's."""
    config = {"max_position_embeddings": 4096, "rope_parameters": parameters}
    ours, theirs = gguf(**keys).rope(), RopeSettings.from_json(config, "here", size=64).rope()
    assert ours.factor == pytest.approx(theirs.factor)
    assert torch.equal(ours.inv_freq, theirs.inv_freq)


def test_gguf_longrope():
    """Catches short and long factors exchanged, and the type that older files of Phi-3 don't name."""
    names = ("rope_factors_long.weight", "rope_factors_short.weight")
    keys = {"scaling__original_context_length": 1024, "scaling__attn_factor": 1.25}
    rope = gguf(names, **keys).rope({"rope_factors_short": torch.ones(32), "rope_factors_long": torch.full((32,), 4.0)})
    assert [rope.regime(total) for total in (1, 1024, 1025, 4096)] == [0, 0, 1, 1]
    assert torch.equal(rope.angles(0), 4 * rope.angles(1))
    assert rope.factor == 1.25
    with pytest.raises(CheckpointError, match="lacks the tensors"):
        gguf(scaling__type="longrope")
    with pytest.raises(UnsupportedModel, match="'spiral'"):
        gguf(scaling__type="spiral")


def test_layers_that_turn_differently():
    """Catches the two bases of Gemma 3 exchanged, and a scaling that reaches the layers with a window; in the old keys,
    the new ones, and GGUF's."""
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    new = {"rope_parameters": {"full_attention": full, "sliding_attention": {"rope_theta": 1e4}}}
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"type": "linear", "factor": 8.0}}
    for config in (new, old):
        for layer_type, base, divisor in (("full_attention", 1e6, 8.0), ("sliding_attention", 1e4, 1.0)):
            read = RopeSettings.from_json(config, "here", size=64, layer_type=layer_type)
            assert torch.equal(read.rope().inv_freq, RopeSettings(base, 64, 1).rope().inv_freq / divisor)
    metadata = {"gemma3.context_length": 1, "gemma3.rope.freq_base_swa": 2e4, "gemma3.rope.scaling.factor": 8.0}
    local = RopeSettings.from_gguf(metadata, "gemma3", (), "here", size=64, local=True)
    assert (local.rope_theta, local.rope_type) == (2e4, "default")
    with pytest.raises(UnsupportedModel, match="differently"):
        RopeSettings.from_json(new, "here", size=64)


def test_lengths():
    """Catches a context that stops where the stretched one begins."""
    kinds = {"linear": 4096, "llama3": 4096, "longrope": 4096, "dynamic": 16384, "yarn": 8192}
    for kind, expected in kinds.items():
        parameters = {"factor": 4.0, "original_max_position_embeddings": 2048}
        assert RopeSettings(1e4, 64, 4096, kind, parameters).positions == expected, kind


def test_tables_turn():
    """Catches tables of short sequences that long ones go on using."""
    rotary = Rotary(RopeSettings(1e4, 16, 64, "dynamic", {"factor": 2.0}).rope(), 1024)
    short = rotary.tables[0].clone()
    rotary.fit(64)
    assert torch.equal(rotary.tables[0], short)
    rotary.fit(65)
    assert not torch.equal(rotary.tables[0], short)
    middle = rotary.tables[0]
    rotary.fit(256)
    assert rotary.tables[0] is middle, "nothing is computed twice"
    rotary.fit(257)
    assert rotary.tables[0] is not middle
    rotary.fit(3)
    assert torch.equal(rotary.tables[0], short)


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear"},
        {"rope_type": "linear", "factor": "big"},
        {"rope_type": "linear", "factor": 0.0},
        {"rope_type": "llama3", "factor": 8.0},
        {"rope_type": "longrope", "short_factor": [1.0] * 32},
        {"rope_type": "longrope", "short_factor": [1.0] * 31, "long_factor": [1.0] * 32},
        {"partial_rotary_factor": 0.01},
        {"partial_rotary_factor": 0.05},
    ],
)
def test_numbers_that_make_no_angles(parameters):
    """Catches what would only be noticed while weights are read, where no sentence names the file any more."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        RopeSettings.from_json({"rope_parameters": parameters}, "here", size=64)
