"""What each layer did, beside transformers' own tensors, for every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checkpoints import VARIANTS
from rulers import KERNELS, build, reference
from tiny import Tiny

from tinychat.engine.clocks import ClockProbe
from tinychat.engine.layer_statistics import LayerProbe
from tinychat.models.probe import Probe
from tinychat.protocol import LayerStatistics, Spread

CASES = [*((variant, KERNELS[0]) for variant in VARIANTS), *((variant, KERNELS[1]) for variant in ("gpt2", "llama"))]
IDS = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(1)).tolist()
_ADDS = {"gpt2": ("attn", "mlp"), "gpt_neox": ("attention", "mlp")}
"""Modules of a transformers layer whose outputs are added to the stream; of Gemma, norms behind the sublayers."""


@torch.inference_mode()
def theirs(model: Any, ids: list[int]) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Return of each layer at each position: what attention adds, what the MLP adds, entropies of its heads [H, T]."""
    kind = model.config.model_type
    names = _ADDS.get(kind, ("self_attn", "mlp"))
    if kind.startswith("gemma"):
        names = "post_attention_layernorm", "post_feedforward_layernorm"
    base = getattr(model.base_model, "language_model", model.base_model)
    layers = base.h if hasattr(base, "h") else base.layers
    caught: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    hooks = []
    for layer in layers:
        for name in names:

            def catch(module: Any, given: Any, made: Any, name: str = name) -> None:
                caught[name].append((made[0] if isinstance(made, tuple) else made).reshape(len(ids), -1))

            hooks.append(getattr(layer, name).register_forward_hook(catch))
    try:
        model.set_attn_implementation("eager")
        attentions = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    finally:
        for hook in hooks:
            hook.remove()
    return caught[names[0]], caught[names[1]], [torch.special.entr(each[0]).sum(-1) for each in attentions]


def spread(numbers: torch.Tensor) -> Spread:
    return Spread(*(float(x) for x in (numbers.min(), numbers.max(), numbers.mean(), numbers.std(correction=0))))


def assert_near(ours: LayerStatistics, norm: float, attn: torch.Tensor, mlp: torch.Tensor, heads: torch.Tensor) -> None:
    assert ours.residual_norm == pytest.approx(norm, rel=1e-4)
    for got, numbers in ((ours.attn_out, attn), (ours.mlp_out, mlp)):
        expected, scale = spread(numbers), float(numbers.abs().max())
        for field in ("least", "most", "mean", "deviation"):
            assert getattr(got, field) == pytest.approx(getattr(expected, field), abs=1e-4 * scale)
    assert ours.head_entropy == pytest.approx(heads.tolist(), abs=1e-4)
    assert 0 < ours.attention_ms < 1e4
    assert 0 < ours.mlp_ms < 1e4


@pytest.mark.parametrize(("variant", "kernels"), CASES, ids=lambda value: getattr(value, "NAME", value))
@torch.inference_mode()
def test_statistics_are_those_of_transformers_tensors(tiny: Tiny, variant, kernels):
    """Of the last rows of a long pass, of single tokens, and of a pass that looks again; catches a tap before a norm
    that belongs to the sublayer, a row too far, a window's heads."""
    made = tiny.safetensors(variant)
    built = build(made.path, kernels=kernels)
    layers = built.model.config.layers
    hidden = reference(made.model, IDS).hidden[1 : layers + 1]
    attn, mlp, heads = theirs(made.model, IDS)
    context = built.context()
    context.reuse(IDS)
    passes = [(0, 30, 3), (30, 31, 1), (31, 34, 3), (34, 40, 1)]
    for start, end, rows in passes:
        probe = LayerProbe(layers, rows)
        context.forward(IDS[start:end], probe)
        for row in range(rows):
            at = end - rows + row
            for layer, ours in enumerate(probe.statistics(row)):
                norm = float(hidden[layer][at].norm())
                assert_near(ours, norm, attn[layer][at], mlp[layer][at], heads[layer][:, at])
    held = list(context.ids)
    for at in (39, 36):
        probe = LayerProbe(layers, 1)
        context.look(IDS[: at + 1], probe)
        for layer, ours in enumerate(probe.statistics(0)):
            assert_near(ours, float(hidden[layer][at].norm()), attn[layer][at], mlp[layer][at], heads[layer][:, at])
    assert context.ids == held


def test_clocks_leave_out_what_probes_do(tiny: Tiny, monkeypatch):
    """Each stretch counts once, to the sublayer it belongs to; what a probe does at a tap counts nowhere."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    probe = LayerProbe(2, 1)

    def tap(name: str, after: float, looks: float = 0.0) -> None:
        def tensor() -> torch.Tensor:
            now[0] += looks
            return torch.ones(1, 4) if "pattern" not in name else torch.ones(1, 1, 4)

        now[0] += after
        probe(name, tensor)

    tap("hook_embed", 100)
    for layer in (0, 1):
        block = f"blocks.{layer}"
        tap(f"{block}.hook_resid_pre", 1)
        tap(f"{block}.attn.hook_pattern", 2, looks=50)
        tap(f"{block}.attn.hook_z", 4)
        tap(f"{block}.hook_attn_out", 8 + layer)
        tap(f"{block}.hook_resid_mid", 16)
        tap(f"{block}.hook_mlp_out", 32)
        tap(f"{block}.hook_resid_post", 0, looks=7)
    tap("ln_final.hook_normalized", 64)
    tap("unembed.hook_out", 128)
    assert probe.seconds == [[15, 48], [16, 48]]
    assert probe.head == 192
    tap("hook_embed", 5)
    tap("blocks.0.hook_attn_out", 3)
    assert probe.seconds[0][0] == 3, "a pass that begins again"


@torch.inference_mode()
def test_a_clock_hears_every_family(tiny: Tiny):
    """Catches an architecture without the taps that clocks stop at."""
    for variant in ("llama", "gpt2", "gpt_neox", "gemma2", "phi3"):
        if variant not in VARIANTS:
            continue
        built = build(tiny.safetensors(variant).path)
        probe = ClockProbe(built.model.config.layers)
        context = built.context()
        context.forward(IDS[:5], probe)
        assert all(part > 0 for layer in probe.seconds for part in layer)
        assert probe.head > 0


@torch.inference_mode()
def test_open_taps_change_nothing(tiny: Tiny):
    """Logits with and without eyes on them are the same numbers; catches a tap that works in place."""
    built = build(tiny.safetensors("llama").path)
    closed, opened = built.context(), built.context()
    for start, end in ((0, 9), (9, 10), (10, 13)):
        expected = closed.verify(IDS[start:end])
        assert torch.equal(opened.verify(IDS[start:end], LayerProbe(3, 1)), expected)
        assert torch.equal(closed.states, opened.states)
    everything = Probe()
    assert torch.equal(opened.forward(IDS[13:14], everything), closed.forward(IDS[13:14]))
    assert "unembed.hook_out" in everything.seen
