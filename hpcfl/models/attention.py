"""Attention that batches over clients: softmax(q kᵀ/√d + mask) v by matrix products
(adapters.md §2).

torch's ``scaled_dot_product_attention`` has no batching rule for several clients on a
CPU, and draws its dropout from a stream. The classes here compute the same results as
torch's classes with the same names and parameters. ``replace_layers`` replaces torch's
classes by them.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from hpcfl.models.random import RandomLayer


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Return softmax(q kᵀ/√d + mask) v, ``[…, tokens, width of v]``, and its weights,
    ``[…, tokens of q, tokens of k]``.

    Args:
        q: The queries, ``[…, tokens of q, d]``.
        k: The keys, ``[…, tokens of k, d]``.
        v: The values, ``[…, tokens of k, width of v]``.
        mask: Numbers added to the scores ``[…, tokens of q, tokens of k]``; None for no
            mask.
        dropout: The dropout of the weights.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    weights = dropout(scores.softmax(dim=-1))
    return weights @ v, weights


def make_causal_mask(tokens: int, device: torch.device) -> Tensor:
    """Return the causal mask [tokens, tokens], with which a token attends to itself and
    to earlier tokens.
    """
    return torch.full((tokens, tokens), -torch.inf, device=device).triu(1)


def gelu(x: Tensor) -> Tensor:
    """Compute the exact GELU, x Φ(x), by erf.

    torch's operator uses another formula for the last few numbers of a tensor, so that
    a client's result would depend on the other clients (``lane_independence.py``).
    """
    return x * (0.5 + 0.5 * torch.erf(x * math.sqrt(0.5)))


def gelu_by_tanh(x: Tensor) -> Tensor:
    """Compute the approximation x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))) of GELU, with
    the same formula for all numbers, as in ``gelu``.
    """
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x * (0.5 + 0.5 * torch.tanh(inner))


class GELU(nn.GELU):
    """torch's GELU, by a formula that is the same for all numbers of a tensor."""

    def forward(self, input: Tensor) -> Tensor:
        formula = gelu if self.approximate == "none" else gelu_by_tanh
        return formula(input)


class MultiheadAttention(RandomLayer, nn.MultiheadAttention):
    """torch's multi-head attention with keyed dropout of the weights."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute torch's forward pass, with torch's arguments and results.

        Raises:
            RuntimeError: ``is_causal`` is given without ``attn_mask``, as in torch.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("is_causal is a hint about attn_mask, which is missing")
        one_sample = query.dim() == 2
        if one_sample and key_padding_mask is not None:
            key_padding_mask = key_padding_mask[None]
        q, k, v = self._project(query, key, value)
        mask = self._make_mask(q, k, key_padding_mask, attn_mask)
        q, k, v = (
            part.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for part in (q, k, v)
        )
        mixed, weights = attend(
            q, k, v, mask, lambda weights: self._dropout(weights, self.dropout)
        )
        output: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if average_attn_weights:
            weights = weights.mean(dim=1)
        if one_sample:
            output, weights = output[0], weights[0]
        elif not self.batch_first:
            output = output.transpose(0, 1)
        return output, weights if need_weights else None

    def _project(self, *given: Tensor) -> list[Tensor]:
        """Return queries, keys and values of all heads, [batch, tokens, width] each.

        Keys and values include the tokens of ``add_bias_kv`` and ``add_zero_attn``.
        """
        biases: tuple[Tensor | None, ...] = (None, None, None)
        if self.in_proj_bias is not None:
            biases = self.in_proj_bias.unflatten(0, (3, -1)).unbind()
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.unflatten(0, (3, -1)).unbind()
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        parts = []
        for x, weight, bias in zip(given, weights, biases, strict=True):
            if x.dim() == 2:
                x = x[None]
            elif not self.batch_first:
                x = x.transpose(0, 1)
            parts.append(functional.linear(x, weight, bias))
        appended = [None, self.bias_k, self.bias_v]
        for number in (1, 2):
            more = appended[number]
            part = parts[number]
            if more is not None:
                parts[number] = part = torch.cat(
                    [part, more.expand(len(part), -1, -1)], dim=1
                )
            if self.add_zero_attn:
                parts[number] = torch.cat([part, torch.zeros_like(part[:, :1])], dim=1)
        return parts

    def _make_mask(
        self,
        q: Tensor,
        k: Tensor,
        padding: Tensor | None,
        attention: Tensor | None,
    ) -> Tensor | None:
        """Return the sum of both masks for scores [batch, heads, tokens of q, tokens of
        k].

        Args:
            padding: The mask of the padding, [batch, tokens of key].
            attention: The mask of pairs of tokens, [tokens of q, tokens of key] or
                [batch · heads, tokens of q, tokens of key].
        """
        mask = None
        if attention is not None:
            mask = _make_additive(attention)
            if mask.dim() == 3:
                mask = mask.unflatten(0, (len(q), self.num_heads))
        if padding is not None:
            padded = _make_additive(padding)[:, None, None]
            mask = padded if mask is None else mask + padded
        if mask is None:
            return None
        return functional.pad(mask, (0, k.shape[1] - mask.shape[-1]))


def _make_additive(mask: Tensor) -> Tensor:
    """Return a mask as numbers to add. A boolean mask hides the tokens with True."""
    if mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros_like(mask, dtype=torch.get_default_dtype())
    return zeros.masked_fill(mask, -torch.inf)


class TransformerEncoderLayer(nn.TransformerEncoderLayer):
    """torch's encoder layer, without its fused operator in evaluation mode."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Compute torch's forward pass, with torch's arguments and result."""
        given = (src_mask, src_key_padding_mask, is_causal)
        x = src
        if self.norm_first:
            x = x + self._attend(self.norm1(x), *given)
            return x + self._transform(self.norm2(x))
        x = self.norm1(x + self._attend(x, *given))
        result: Tensor = self.norm2(x + self._transform(x))
        return result

    def _attend(
        self,
        x: Tensor,
        mask: Tensor | None,
        padding: Tensor | None,
        is_causal: bool,
    ) -> Tensor:
        """Return the attention of a sequence to itself, after its dropout."""
        result, _ = self.self_attn(x, x, x, padding, False, mask, is_causal=is_causal)
        dropped: Tensor = self.dropout1(result)
        return dropped

    def _transform(self, x: Tensor) -> Tensor:
        """Apply the two linear layers and the dropout behind them."""
        known = self.activation is functional.gelu
        activation = gelu if known else self.activation
        inner = self.dropout(activation(self.linear1(x)))
        result: Tensor = self.dropout2(self.linear2(inner))
        return result


class TransformerEncoder(nn.TransformerEncoder):
    """torch's encoder, without its branches on the values of masks.

    torch's encoder reads a mask's values to detect a causal mask, and creates tensors
    of varying length if there is padding.
    """

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """Compute torch's forward pass, with torch's arguments and result."""
        x = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, is_causal=bool(is_causal))
        return x if self.norm is None else self.norm(x)
