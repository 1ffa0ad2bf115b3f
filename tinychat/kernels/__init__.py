"""The work between the matrix products, as a handful of primitives in two forms: `plain` (torch) and `fused` (Numba).

Both are modules with the same functions, so a model holds one of them and calls it; `plain` says what each means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Attention(Protocol):
    """How one layer attends."""

    @property
    def kv_heads(self) -> int: ...
    @property
    def head_size(self) -> int: ...
    @property
    def scale(self) -> float:
        """Of the scores."""

    @property
    def window(self) -> int | None:
        """Positions a token sees, itself included; None: all."""

    @property
    def softcap(self) -> float | None:
        """Bends scores back (Gemma 2); None: not."""


class Store(Protocol):
    """Keys and values of one layer, by position."""

    def write(self, start: int, keys: torch.Tensor, values: torch.Tensor, /) -> None:
        """Store keys and values [T, K, D] of the positions from `start` on."""

    def read(self, start: int, end: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [K, end - start, D]."""


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

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype, /) -> torch.Tensor: ...

    def norm_heads(
        self, qkv: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor, kv_heads: int, eps: float, /
    ) -> torch.Tensor: ...

    def silu_mul(self, gate_up: torch.Tensor, /) -> torch.Tensor: ...

    def gelu_tanh_mul(self, gate_up: torch.Tensor, /) -> torch.Tensor: ...

    def gelu_tanh(self, x: torch.Tensor, /) -> torch.Tensor: ...

    def gelu_erf(self, x: torch.Tensor, /) -> torch.Tensor: ...

    def softcap(self, x: torch.Tensor, cap: float, /) -> torch.Tensor: ...

    def append_attend(
        self,
        qkv: torch.Tensor,
        store: Store,
        length: int,
        rotary: tuple[torch.Tensor, torch.Tensor] | None,
        attention: Attention,
        /,
    ) -> torch.Tensor: ...

    def best(self, logits: torch.Tensor, count: int, /) -> tuple[torch.Tensor, torch.Tensor]: ...

    def statistics(self, logits: torch.Tensor, token_id: int, /) -> tuple[float, int, float]: ...
