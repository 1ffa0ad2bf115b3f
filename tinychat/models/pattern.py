"""How much each head looks at each earlier token: what the fused attention never writes down, computed beside it.

The plain attention of `kernels/plain.py` up to its softmax, of the last positions alone. Shapes as in layers.py.
"""

from __future__ import annotations

import torch

from tinychat.kernels import plain
from tinychat.models.cache import Cache


def attention_pattern(qkv: torch.Tensor, cache: Cache, rows: int | None = None) -> torch.Tensor:
    """Return the weights that attention mixes the values by.

    Args:
        qkv: What was appended to the cache last, activations [T, (H + 2 K) D].
        cache: Of the layer, with these tokens in it.
        rows: How many of the last positions to look at; None: all T.

    Returns:
        fp32 [H, rows, S]: of each head and position, what it gives to each of the S tokens in the cache; rows sum to 1.
        What lies behind a window, or after the position, gets 0.
    """
    spec = cache.attention
    size, kv_heads = spec.head_size, spec.kv_heads
    rows = len(qkv) if rows is None else min(rows, len(qkv))
    end = cache.length
    query = qkv[-rows:].view(rows, -1, size)[:, : -2 * kv_heads]  # [T, H, D]
    if cache.rotary is not None:
        cos, sin = (table[end - rows : end] for table in cache.rotary.tables)
        query = plain.rotate(query.float(), cos, sin)
    first = 0 if spec.window is None else max(0, end - rows + 1 - spec.window)
    keys, _ = cache.read(first, end)  # [K, S, D]
    grouped = query.to(qkv.dtype).float().unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)  # [K, H / K, T, D]
    scores = grouped @ keys.float()[:, None].transpose(-1, -2) * spec.scale  # [K, H / K, T, S]
    if spec.softcap is not None:
        scores = plain.softcap(scores, spec.softcap)
    positions = torch.arange(first, end, device=qkv.device)
    own = torch.arange(end - rows, end, device=qkv.device)[:, None]
    visible = positions <= own
    if spec.window is not None:
        visible &= positions > own - spec.window
    shares = scores.masked_fill(~visible, -torch.inf).softmax(-1).flatten(0, 1)
    return torch.nn.functional.pad(shares, (first, 0))
