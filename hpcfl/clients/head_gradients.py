"""Gradients of the output layer by class, from class means of outer products."""

import torch
from torch import Tensor, nn

from hpcfl.models import parts
from hpcfl.rows.layout import Layout


def compute_outer_products(model: nn.Module, x: Tensor, lane: object) -> Tensor:
    """Return p ⊗ (φ, 1) for each sample, ``[batch, K·(d + 1)]``.

    With a sample's features φ [d], probabilities p [K] and class y, the gradient of the
    head is ∂CE/∂head = (p − e_y) ⊗ (φ, 1). The mean gradient of a class follows from
    the mean of p ⊗ (φ, 1), so no sample's gradient is stored.
    """
    features = parts(model).features(x)
    extended = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
    outer: Tensor = (
        parts(model).head(features).softmax(dim=1)[:, :, None] * extended[:, None]
    )
    return outer.flatten(1)


def compute_from_means(outer: Tensor, layout: Layout) -> Tensor:
    """Return the gradients ``[n, K, P_h]`` of each class's mean cross-entropy.

    Columns are the head's parameters in the order of a row: the weight, then the bias
    if present. The mean of (φ, 1) is the sum of the rows of p ⊗ (φ, 1), because p sums
    to one.

    Args:
        outer: class means ``[n, K, K·(d + 1)]`` of ``compute_outer_products``.
        layout: layout of the model's parameters.
    """
    clients, classes, _ = outer.shape
    rows = outer.view(clients, classes, classes, -1)
    rows = rows - torch.eye(classes, device=rows.device)[:, :, None] * rows.sum(
        dim=2, keepdim=True
    )
    weight, bias = rows[..., :-1].flatten(2), rows[..., -1]
    return torch.cat([weight, bias], dim=2) if "head.bias" in layout.names else weight
