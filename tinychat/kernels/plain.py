"""The layer primitives in torch: what each one means, and the oracle of its fused form in `fused.py`.

Shapes: T new tokens, S cached + new, H query heads, K kv heads, D head size, C width, I inner width. The residual
stream is fp32 in every dtype; what a matrix product takes and gives has the dtype of the product ("activations").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from tinychat.kernels import Attention, Store

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


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """Return the RMS norm of what a sublayer gives, before the stream gets it (Gemma's norms behind sublayers).

    Args:
        x: Activations [T, C].
        weight: fp32 [C].
        eps: Added to the mean square.
        dtype: Of the result, [T, C].
    """
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(dtype)


def norm_heads(
    qkv: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor, kv_heads: int, eps: float
) -> torch.Tensor:
    """Put each head of the queries and keys through an RMS norm of its own (Henry et al. 2020, arXiv:2010.04245).

    Args:
        qkv: Activations [T, (H + 2 K) D].
        query_weight: fp32 [D], for every query head.
        key_weight: fp32 [D], for every key head.
        kv_heads: K.
        eps: Added to the mean square.

    Returns:
        The same with queries and keys normed, values as they were.
    """
    size = len(query_weight)
    heads = qkv.shape[1] // size - 2 * kv_heads
    query, key, value = qkv.view(len(qkv), -1, size).split((heads, kv_heads, kv_heads), dim=1)
    query, key = rms_norm(query, query_weight, eps, qkv.dtype), rms_norm(key, key_weight, eps, qkv.dtype)
    return torch.cat((query, key, value), dim=1).flatten(1)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up of activations [T, 2 I], gate first (SwiGLU: Shazeer 2020, arXiv:2002.05202)."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Return GELU of activations [T, I] by its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    return F.gelu(x.float(), approximate="tanh").to(x.dtype)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return gelu(gate) * up of activations [T, 2 I], gate first, with GELU's tanh form (GeGLU: arXiv:2002.05202)."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)


def gelu_erf(x: torch.Tensor) -> torch.Tensor:
    """Return GELU of activations [T, I], exactly: x Phi(x) (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    return F.gelu(x.float()).to(x.dtype)


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return cap tanh(x / cap) of fp32 `x`, of any shape: numbers beyond the cap are bent back (arXiv:2408.00118)."""
    return torch.tanh(x / cap) * cap


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each head by its position's angles.

    Args:
        x: fp32 [T, heads, D].
        cos: fp32 [T, R/2]; the first R components of a head turn, the others stay.
        sin: fp32 [T, R/2].

    Returns:
        fp32 [T, heads, D].
    """
    half = cos.shape[-1]
    left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((left * cos - right * sin, right * cos + left * sin, rest), dim=-1)


def append_attend(
    qkv: torch.Tensor,
    store: Store,
    length: int,
    rotary: tuple[torch.Tensor, torch.Tensor] | None,
    attention: Attention,
) -> torch.Tensor:
    """Rotate new queries and keys, append keys and values to a layer's store, attend.

    Args:
        qkv: Activations [T, (H + 2 K) D]: queries, keys, values of the new tokens.
        store: Keys and values of the layer; positions length .. length + T are written.
        length: Tokens stored so far.
        rotary: cos and sin of every position, fp32 [positions, R/2]; None: no rotation.
        attention: Shapes, scale, window and cap.

    Returns:
        The mix, activations [T, H D].
    """
    tokens = qkv.shape[0]
    kv_heads, size = attention.kv_heads, attention.head_size
    end = length + tokens
    heads = qkv.shape[1] // size - 2 * kv_heads
    query, key, value = qkv.view(tokens, -1, size).split((heads, kv_heads, kv_heads), dim=1)
    if rotary is not None:
        cos, sin = (table[length:end] for table in rotary)
        query, key = rotate(query.float(), cos, sin), rotate(key.float(), cos, sin)
    store.write(length, key, value)
    first = 0 if attention.window is None else max(0, length + 1 - attention.window)
    # In the numbers of the products before and after it: fp32, unless the processor is faster by bf16.
    query, keys, values = (each.to(qkv.dtype) for each in (query, *store.read(first, end)))
    return attend(query, keys, values, attention).reshape(tokens, heads * size)


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, attention: Attention) -> torch.Tensor:
    """Return the mix of values [T, H, D] of the last T positions' queries.

    Query head h reads kv head h // (H / K) (grouped-query attention: Ainslie et al. 2023, arXiv:2305.13245); position q
    sees position k if q - window < k <= q.

    Args:
        query: [T, H, D], of the dtype of the keys.
        keys: [K, S, D]; the last T of them are the queries' own positions.
        values: [K, S, D].
        attention: Shapes, scale, window and cap.
    """
    tokens, heads, size = query.shape
    kv_heads, length = keys.shape[:2]
    group = heads // kv_heads
    # The queries of a group stand along the query axis, so that K and V are read once a group and never repeated.
    grouped = query.view(tokens, kv_heads, group, size).permute(1, 2, 0, 3).reshape(kv_heads, group * tokens, size)
    mask = None
    if tokens > 1:
        positions = torch.arange(length, device=query.device)
        own = positions[length - tokens :, None]
        visible = positions[None, :] <= own
        if attention.window is not None:
            visible &= positions[None, :] > own - attention.window
        mask = visible.repeat(group, 1)  # [group T, S]
    if attention.softcap is None:
        # One batch dimension more: SDPA takes its fast path for four dimensions only.
        mix = F.scaled_dot_product_attention(
            grouped[None], keys[None], values[None], attn_mask=mask, scale=attention.scale
        )[0]
    else:
        scores = softcap((grouped @ keys.transpose(1, 2)).float() * attention.scale, attention.softcap)
        if mask is not None:
            scores.masked_fill_(~mask, -torch.inf)
        mix = scores.softmax(-1).to(values.dtype) @ values
    return mix.view(kv_heads, group, tokens, size).permute(2, 0, 1, 3).flatten(1, 2)


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
