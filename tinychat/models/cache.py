"""The KV cache of one layer: a slab reserved once, written in place, never moved.

The operating system commits its pages as they are first touched, so a large reservation costs nothing until it is used.
A layer never sees the layout: it hands over its new queries, keys and values and gets the mix back.
"""

from __future__ import annotations

import torch

from tinychat.kernels import Kernels
from tinychat.models.rope import Rotary


class SlabCache:
    """Keys and values as two tensors [K, capacity, D]."""

    def __init__(
        self,
        kv_heads: int,
        capacity: int,
        head_size: int,
        dtype: torch.dtype,
        device: str,
        *,
        kernels: Kernels,
        rotary: Rotary | None,
        scale: float,
    ) -> None:
        """Reserve room.

        Args:
            kv_heads: K.
            capacity: Most tokens it will hold.
            head_size: D.
            dtype: Of keys and values.
            device: Where they are.
            kernels: The primitives that attend: `kernels.plain` or `kernels.fused`.
            rotary: Rotation of queries and keys, or None.
            scale: Of the attention scores.
        """
        self.length = 0
        self.capacity = capacity
        self.keys = torch.empty(kv_heads, capacity, head_size, dtype=dtype, device=device)
        self.values = torch.empty(kv_heads, capacity, head_size, dtype=dtype, device=device)
        self._kernels = kernels
        self._tables = None if rotary is None else (rotary.cos.to(device), rotary.sin.to(device))
        self._scale = scale

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.keys.dtype

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def used_bytes(self) -> int:
        """Bytes that hold tokens."""
        return self.nbytes // self.capacity * self.length

    def append_attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """Append the keys and values of T new tokens, and attend.

        Args:
            qkv: Activations [T, (H + 2 K) D]: queries, keys and values, not yet rotated.

        Returns:
            The mix of values, activations [T, H D].
        """
        end = self.length + qkv.shape[0]
        assert end <= self.capacity, f"{end} tokens don't fit a cache of {self.capacity}"
        mix: torch.Tensor = self._kernels.rope_append_attend(
            qkv, self.keys, self.values, self.length, self._tables, self._scale
        )
        self.length = end
        return mix

    def trim(self, length: int) -> None:
        """Forget all tokens from position `length` on."""
        assert 0 <= length <= self.length, f"can't trim {self.length} tokens to {length}"
        self.length = length
