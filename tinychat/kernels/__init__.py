"""The work between the matrix products, as a handful of primitives in two forms: `plain` (torch) and `fused` (Numba).

Both are modules with the same functions, so a model holds one of them and calls it; `plain` says what each means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Kernels(Protocol):
    """What `plain` and `fused` both are."""

    NAME: str
    """How results name the path: torch, numba."""

    def add_rms_norm(
        self,
        residual: torch.Tensor,
        delta: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        dtype: torch.dtype,
        /,
    ) -> torch.Tensor: ...

    def add_layer_norm(
        self,
        residual: torch.Tensor,
        delta: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
        dtype: torch.dtype,
        /,
    ) -> torch.Tensor: ...

    def silu_mul(self, gate_up: torch.Tensor, /) -> torch.Tensor: ...

    def gelu_tanh(self, x: torch.Tensor, /) -> torch.Tensor: ...

    def rope_append_attend(
        self,
        qkv: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        length: int,
        rotary: tuple[torch.Tensor, torch.Tensor] | None,
        scale: float,
        /,
    ) -> torch.Tensor: ...

    def best(self, logits: torch.Tensor, count: int, /) -> tuple[torch.Tensor, torch.Tensor]: ...

    def statistics(self, logits: torch.Tensor, token_id: int, /) -> tuple[float, int, float]: ...
