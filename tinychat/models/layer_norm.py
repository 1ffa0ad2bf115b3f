"""Layers of GPT-2's kind: layer norms with a bias in place of RMS norms, an MLP without a gate. They only compute.

Shapes as in layers.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tinychat.kernels import Kernels
from tinychat.models.cache import Cache
from tinychat.models.layers import Attention, Decoder
from tinychat.models.linear import Linear
from tinychat.models.probe import Probe

Norm = tuple[torch.Tensor, torch.Tensor]
"""Weight and bias, fp32 [C] each."""


class MLP:
    """down(activation(up(x)))."""

    def __init__(self, up_proj: Linear, down_proj: Linear, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Take the projections, and what bends [T, I] between them."""
        self.up_proj = up_proj
        self.down_proj = down_proj
        self.activation = activation

    @property
    def activations(self) -> torch.dtype:
        """Dtype that `forward` takes best."""
        return self.up_proj.activations

    def forward(self, x: torch.Tensor, probe: Probe, name: str) -> torch.Tensor:
        """Return what the MLP adds to the residual stream, [T, C], for x [T, C]."""
        pre = self.up_proj.forward(x)  # [T, I]
        inner = self.activation(pre)
        if probe:
            probe(f"{name}.mlp.hook_pre", pre)
            probe(f"{name}.mlp.hook_post", inner)
        return self.down_proj.forward(inner)


class LayerNormBlock:
    """x + attention(norm(x)), then x + mlp(norm(x)); or, in parallel, x + attention(norm(x)) + mlp(norm(x))."""

    def __init__(
        self,
        layer: int,
        norms: tuple[Norm, Norm],
        self_attn: Attention,
        mlp: MLP,
        eps: float,
        kernels: Kernels,
        *,
        parallel: bool = False,
    ) -> None:
        """Take the sublayers and the norms before them; `parallel`: both sublayers see what enters the block."""
        self.name = f"blocks.{layer}"
        self.input_layernorm, self.post_attention_layernorm = norms
        self.self_attn = self_attn
        self.mlp = mlp
        self.eps = eps
        self.kernels = kernels
        self.parallel = parallel

    def forward(self, residual: torch.Tensor, delta: torch.Tensor | None, cache: Cache, probe: Probe) -> torch.Tensor:
        """Run the block; arguments and result as of `layers.PreNormBlock.forward`."""
        norm = self.kernels.add_layer_norm
        x = norm(residual, delta, *self.input_layernorm, self.eps, self.self_attn.activations)
        if probe:
            probe(f"{self.name}.hook_resid_pre", residual)
            probe(f"{self.name}.ln1.hook_normalized", x)
        attn_out = self.self_attn.forward(x, cache, probe, self.name)
        if probe:
            probe(f"{self.name}.hook_attn_out", attn_out)
        added = None if self.parallel else attn_out
        x = norm(residual, added, *self.post_attention_layernorm, self.eps, self.mlp.activations)
        if self.parallel:
            residual.add_(attn_out)
        if probe:
            if not self.parallel:
                probe(f"{self.name}.hook_resid_mid", residual)
            probe(f"{self.name}.ln2.hook_normalized", x)
        mlp_out = self.mlp.forward(x, probe, self.name)
        if probe:
            probe(f"{self.name}.hook_mlp_out", mlp_out)
            probe(f"{self.name}.hook_resid_post", lambda: residual + mlp_out)
        return mlp_out


class LayerNormDecoder(Decoder):
    """A decoder whose last norm is a layer norm."""

    bias: torch.Tensor
    """Of the last norm, fp32 [C]."""

    def normed(self, residual: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """See `Decoder`."""
        return self.kernels.add_layer_norm(residual, delta, self.norm, self.bias, self.eps, self.lm_head.activations)
