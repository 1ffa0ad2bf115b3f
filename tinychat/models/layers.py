"""Layers that several architectures are made of. They only compute: an architecture's own file takes the weights.

Shapes: B batch (always 1 here, so left out), T new tokens, S cached + new, H query heads, K kv heads, D head size,
C width, I inner width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tinychat.kernels import Kernels
from tinychat.models.cache import AttentionSpec, Cache
from tinychat.models.embedding import Embedding
from tinychat.models.linear import Linear
from tinychat.models.pattern import attention_pattern
from tinychat.models.probe import CLOSED, Probe


@dataclass(slots=True)
class HeadNorms:
    """RMS norms of each query and key head, before they turn."""

    q_norm: torch.Tensor
    """fp32 [D]."""
    k_norm: torch.Tensor
    """fp32 [D]."""
    eps: float


class Attention:
    """Causal self-attention; H query heads share K heads of keys and values."""

    def __init__(
        self,
        qkv_proj: Linear,
        o_proj: Linear,
        heads: int,
        spec: AttentionSpec,
        kernels: Kernels,
        norms: HeadNorms | None = None,
    ) -> None:
        """Take the projections; `qkv_proj` gives H + 2 K heads of D."""
        self.qkv_proj = qkv_proj
        self.o_proj = o_proj
        self.spec = spec
        self.norms = norms
        self.kernels = kernels
        self.heads = (heads, spec.kv_heads, spec.kv_heads)

    @property
    def activations(self) -> torch.dtype:
        """Dtype that `forward` takes best."""
        return self.qkv_proj.activations

    def forward(self, x: torch.Tensor, cache: Cache, probe: Probe, name: str) -> torch.Tensor:
        """Return what attention adds to the residual stream, [T, C], for x [T, C]."""
        qkv = self.qkv_proj.forward(x)  # [T, (H + 2 K) D]
        if probe:
            self._show(("q", "k", "v"), qkv, probe, name)
        if self.norms is not None:
            norms = self.norms
            qkv = self.kernels.norm_heads(qkv, norms.q_norm, norms.k_norm, self.spec.kv_heads, norms.eps)
            if probe:
                self._show(("q_normed", "k_normed"), qkv, probe, name)
        mix = cache.append_attend(qkv)  # [T, H D]
        if probe:
            probe(f"{name}.attn.hook_pattern", lambda: attention_pattern(qkv, cache, probe.rows))
            probe(f"{name}.attn.hook_z", mix.unflatten(-1, (self.heads[0], -1)))
        return self.o_proj.forward(mix)

    def _show(self, taps: Sequence[str], qkv: torch.Tensor, probe: Probe, name: str) -> None:
        parts = qkv.unflatten(-1, (-1, self.spec.head_size)).split(self.heads, dim=1)  # [T, heads, D]
        for tap, part in zip(taps, parts, strict=False):
            probe(f"{name}.attn.hook_{tap}", part)


class GatedMLP:
    """down(activation(gate(x)) * up(x))."""

    def __init__(
        self, gate_up_proj: Linear, down_proj: Linear, activation_mul: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Take the projections; `gate_up_proj` gives gate, then up; `activation_mul` joins them to [T, I]."""
        self.gate_up_proj = gate_up_proj
        self.down_proj = down_proj
        self.activation_mul = activation_mul

    @property
    def activations(self) -> torch.dtype:
        """Dtype that `forward` takes best."""
        return self.gate_up_proj.activations

    def forward(self, x: torch.Tensor, probe: Probe, name: str) -> torch.Tensor:
        """Return what the MLP adds to the residual stream, [T, C], for x [T, C]."""
        gate_up = self.gate_up_proj.forward(x)  # [T, 2 I]
        inner = self.activation_mul(gate_up)  # [T, I]
        if probe:
            gate, up = gate_up.chunk(2, dim=-1)
            probe(f"{name}.mlp.hook_pre", gate)
            probe(f"{name}.mlp.hook_pre_linear", up)
            probe(f"{name}.mlp.hook_post", inner)
        return self.down_proj.forward(inner)


class PreNormBlock:
    """x + attention(norm(x)), then x + mlp(norm(x)), with RMS norms."""

    def __init__(
        self,
        layer: int,
        norms: tuple[torch.Tensor, torch.Tensor],
        self_attn: Attention,
        mlp: GatedMLP,
        eps: float,
        kernels: Kernels,
    ) -> None:
        """Take the sublayers and the norms before them, fp32 [C]."""
        self.name = f"blocks.{layer}"
        self.input_layernorm, self.post_attention_layernorm = norms
        self.self_attn = self_attn
        self.mlp = mlp
        self.eps = eps
        self.kernels = kernels

    def forward(self, residual: torch.Tensor, delta: torch.Tensor | None, cache: Cache, probe: Probe) -> torch.Tensor:
        """Run the block.

        Args:
            residual: The stream, fp32 [T, C]; changed in place.
            delta: What the block before adds to it and has not added yet, [T, C]: the norm adds it on its way.
            cache: Of this layer.
            probe: The taps.

        Returns:
            What this block's MLP adds, [T, C]; the next norm adds it.
        """
        norm = self.kernels.add_rms_norm
        x = norm(residual, delta, self.input_layernorm, self.eps, self.self_attn.activations)
        if probe:
            probe(f"{self.name}.hook_resid_pre", residual)
            probe(f"{self.name}.ln1.hook_normalized", x)
        attn_out = self.self_attn.forward(x, cache, probe, self.name)
        if probe:
            probe(f"{self.name}.hook_attn_out", attn_out)
        x = norm(residual, attn_out, self.post_attention_layernorm, self.eps, self.mlp.activations)
        if probe:
            probe(f"{self.name}.hook_resid_mid", residual)
            probe(f"{self.name}.ln2.hook_normalized", x)
        mlp_out = self.mlp.forward(x, probe, self.name)
        if probe:
            probe(f"{self.name}.hook_mlp_out", mlp_out)
            probe(f"{self.name}.hook_resid_post", lambda: residual + mlp_out)
        return mlp_out


class Decoder:
    """Embedding, blocks, a norm, the head. An architecture's `Model` sets the attributes in its constructor."""

    FAMILY: ClassVar[str]
    config: Any
    kernels: Kernels
    device: str
    attention: tuple[AttentionSpec, ...]
    """Of each layer."""
    embed_tokens: Embedding
    layers: Sequence[Any]
    norm: torch.Tensor
    """fp32 [C]."""
    eps: float
    lm_head: Linear

    def forward(
        self, ids: torch.Tensor, caches: Sequence[Cache], probe: Probe = CLOSED, *, every_position: bool = False
    ) -> torch.Tensor:
        """Append ids [T] to the caches; return logits, fp32: [1, V] of the last position, or [T, V] of every one."""
        return self.logits(self.states(ids, caches, probe, every_position=every_position))

    def states(
        self, ids: torch.Tensor, caches: Sequence[Cache], probe: Probe = CLOSED, *, every_position: bool = False
    ) -> torch.Tensor:
        """Append ids [T] to the caches; return what the head reads, activations [1, C], or [T, C] of every position."""
        residual = self.embed(ids, caches[0].length, probe)  # [T, C]
        delta = None
        for block, cache in zip(self.layers, caches, strict=True):
            delta = block.forward(residual, delta, cache, probe)
        if not every_position:
            residual, delta = residual[-1:], None if delta is None else delta[-1:]
        x = self.normed(residual, delta)
        if probe:
            probe("ln_final.hook_normalized", x)
        return x

    def embed(self, ids: torch.Tensor, start: int, probe: Probe) -> torch.Tensor:
        """Return what enters the first block, fp32 [T, C], for ids [T] at the positions from `start` on."""
        del start
        embedded = self.embed_tokens.forward(ids)
        if probe:
            probe("hook_embed", embedded)
        return embedded

    def normed(self, residual: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """Add the last block's `delta` to the stream, in place; return what the head reads, activations [T, C]."""
        return self.kernels.add_rms_norm(residual, delta, self.norm, self.eps, self.lm_head.activations)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, fp32 [T, V], for normed x [T, C]."""
        return self.lm_head.forward(x).float()
