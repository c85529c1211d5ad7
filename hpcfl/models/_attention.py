"""Attention that batches over clients: softmax(q kᵀ/√d + mask) v by matrix products
(adapters.md §2).

torch's own ``scaled_dot_product_attention`` has no rule for several clients on a CPU,
and draws its dropout from a stream.
"""

import math

import torch
from torch import Tensor, nn


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout: nn.Module | None = None,
) -> Tensor:
    """Softmax(q kᵀ/√d + mask) v, ``[…, tokens, width of v]``.

    Args:
        q, k, v: ``[…, tokens, d]``; of ``k`` and ``v`` as many tokens.
        mask: added to the scores ``[…, tokens of q, tokens of k]``.
        dropout: of the weights.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(dim=-1)
    if dropout is not None:
        weights = dropout(weights)
    return weights @ v


def causal(tokens: int, device: torch.device) -> Tensor:
    """The mask by which a token sees itself and those before it, [tokens, tokens]."""
    return torch.full((tokens, tokens), -torch.inf, device=device).triu(1)


def gelu(x: Tensor) -> Tensor:
    """The exact GELU, x Φ(x), by erf.

    torch's own computes the last few numbers of a tensor by another formula, so that a
    client's would depend on the clients beside it (``lane_independence.py``).
    """
    return x * (0.5 + 0.5 * torch.erf(x * math.sqrt(0.5)))
