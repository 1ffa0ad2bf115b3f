"""The layer primitives in torch: what each one means, and the oracle of its fused form in `fused.py`.

Shapes: T new tokens, S cached + new, H query heads, K kv heads, D head size, C width, I inner width. The residual
stream is fp32 in every dtype; what a matrix product takes and gives has the dtype of the product ("activations").
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

NAME = "torch"


def add_rms_norm(
    residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """Add `delta` to the residual stream, in place; return its RMS norm (Zhang and Sennrich 2019, arXiv:1910.07467).

    Args:
        residual: fp32 [T, C]; changed.
        delta: Activations [T, C] that the last sublayer adds, or None.
        weight: fp32 [C].
        eps: Added to the mean square.
        dtype: Of the result, [T, C].
    """
    if delta is not None:
        residual.add_(delta)
    # x / sqrt(mean(x^2) + eps) as sqrt(C) x / hypot(|x|, sqrt(C eps)): two passes over x instead of four.
    width = residual.shape[-1]
    size = torch.linalg.vector_norm(residual, dim=-1, keepdim=True)
    scale: torch.Tensor = width**0.5 / torch.hypot(size, residual.new_tensor((width * eps) ** 0.5))
    return (residual * scale * weight).to(dtype)


def add_layer_norm(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Add `delta` to the residual stream, in place; return its layer norm (Ba et al. 2016, arXiv:1607.06450).

    Args:
        residual: fp32 [T, C]; changed.
        delta: Activations [T, C] that the last sublayer adds, or None.
        weight: fp32 [C].
        bias: fp32 [C].
        eps: Added to the variance.
        dtype: Of the result, [T, C].
    """
    if delta is not None:
        residual.add_(delta)
    return F.layer_norm(residual, weight.shape, weight, bias, eps).to(dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up of activations [T, 2 I], gate first (SwiGLU: Shazeer 2020, arXiv:2002.05202)."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Return GELU of activations [T, I] by its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    return F.gelu(x.float(), approximate="tanh").to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each head by its position's angles.

    Args:
        x: fp32 [T, heads, D].
        cos: fp32 [T, D/2].
        sin: fp32 [T, D/2].

    Returns:
        fp32 [T, heads, D].
    """
    left, right = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def rope_append_attend(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    length: int,
    rotary: tuple[torch.Tensor, torch.Tensor] | None,
    scale: float,
) -> torch.Tensor:
    """Rotate new queries and keys, append keys and values to the cache, attend.

    Query head h reads kv head h // (H / K) (grouped-query attention: Ainslie et al. 2023, arXiv:2305.13245); new token
    t sees the cached tokens and the new ones up to itself.

    Args:
        qkv: Activations [T, (H + 2 K) D]: queries, keys, values of the new tokens.
        keys: The cache, [K, capacity, D]; rows length .. length + T are written.
        values: Likewise.
        length: Tokens cached so far.
        rotary: cos and sin of every position, fp32 [capacity, D/2]; None: no rotation.
        scale: Of the scores.

    Returns:
        The mix, activations [T, H D].
    """
    tokens = qkv.shape[0]
    kv_heads, _, size = keys.shape
    heads = qkv.shape[1] // size - 2 * kv_heads
    group = heads // kv_heads
    end = length + tokens
    query, key, value = qkv.view(tokens, -1, size).split((heads, kv_heads, kv_heads), dim=1)
    if rotary is not None:
        cos, sin = (table[length:end] for table in rotary)
        query, key = rotate(query.float(), cos, sin), rotate(key.float(), cos, sin)
    keys[:, length:end] = key.transpose(0, 1)
    values[:, length:end] = value.transpose(0, 1)
    # The queries of a group stand along the query axis, so that K and V are read once a group and never repeated.
    grouped = query.to(keys.dtype).view(tokens, kv_heads, group, size).permute(1, 2, 0, 3)  # [K, group, T, D]
    mask = None
    if tokens > 1:
        positions = torch.arange(end, device=qkv.device)
        visible = positions[None, :] <= positions[length:, None]
        mask = visible.repeat(group, 1)  # [group T, S]
    mix = F.scaled_dot_product_attention(
        grouped.reshape(1, kv_heads, group * tokens, size),
        keys[None, :, :end],
        values[None, :, :end],
        attn_mask=mask,
        scale=scale,
    )
    mix = mix.view(kv_heads, group, tokens, size).permute(2, 0, 1, 3)
    return mix.reshape(tokens, heads * size).to(qkv.dtype)


def best(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` largest of fp32 [V] and their indices, int64: largest first, of equal ones the first first."""
    if count == len(logits):
        return torch.sort(logits, descending=True, stable=True)
    last = torch.topk(logits, count).values[-1]
    # topk breaks ties as it likes; the ids in order, then a stable sort, break them by id.
    ids = (logits >= last).nonzero().flatten()
    order = torch.sort(logits[ids], descending=True, stable=True)
    return order.values[:count], ids[order.indices[:count]]


def statistics(logits: torch.Tensor, token_id: int) -> tuple[float, int, float]:
    """Return, of the distribution that logits [V] stand for, a token's logprob and rank, and the entropy.

    Logprob and entropy are in nats, the rank counts from 1.
    """
    # fp32 would round the logarithm of the mass to the largest logit's last place: 0.004 at 40,000.
    logprobs = logits.double().log_softmax(0)
    rank = int((logits > logits[token_id]).sum()) + 1
    # p log p is 0 at p = 0, where the logit of a banned token would make it NaN.
    entropy = -float((logprobs.exp() * logprobs.clamp(min=-1e4)).sum())
    return float(logprobs[token_id]), rank, max(entropy, 0.0)
