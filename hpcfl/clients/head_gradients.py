"""Gradients of the output layer, class by class."""

import torch
from torch import Tensor, nn

from hpcfl.models import parts
from hpcfl.rows.layout import Layout


def outer_products(model: nn.Module, x: Tensor, lane: object) -> Tensor:
    """Return p ⊗ (φ, 1) for each sample, ``[batch, K·(d + 1)]``: its gradient without the
    label's − e_y ⊗ (φ, 1).

    With φ a sample's features [d], p its probabilities [K] and y its class, ∂CE/∂head =
    (p − e_y) ⊗ (φ, 1). The mean over a class needs only the mean of p ⊗ (φ, 1), so that
    no sample's own gradient is ever kept.
    """
    features = parts(model).features(x)
    extended = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
    outer: Tensor = (
        parts(model).head(features).softmax(dim=1)[:, :, None] * extended[:, None]
    )
    return outer.flatten(1)


def gradients_from_means(outer: Tensor, layout: Layout) -> Tensor:
    """Return gradients ``[n, K, P_h]`` of the classes' mean cross-entropy from class means of
    ``outer_products``.

    outer: the class means ``[n, K, K·(d + 1)]``. The columns of the result are those of
    the head in a row: the weight, then the bias if there is one. (φ, 1) is the sum of
    the rows of p ⊗ (φ, 1), because p sums to one.
    """
    clients, classes, _ = outer.shape
    rows = outer.view(clients, classes, classes, -1)
    rows = rows - torch.eye(classes, device=rows.device)[:, :, None] * rows.sum(
        dim=2, keepdim=True
    )
    weight, bias = rows[..., :-1].flatten(2), rows[..., -1]
    return torch.cat([weight, bias], dim=2) if "head.bias" in layout.names else weight
