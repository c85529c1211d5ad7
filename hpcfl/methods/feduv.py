"""FedUV: FedAvg with regularisers for the variance of predictions and the uniformity of
features, which imitate IID clients.

Son et al., "FedUV: uniformity and variance for heterogeneous federated learning", CVPR
2024. Consider a mini-batch with probabilities Q [b, K] and features X [b, d]. A client
minimises CE + λ·V + μ·U. V = (1/K) Σ_j max(0, 1/√K − std(Q_·j)), with the unbiased
standard deviation. U is the mean over pairs of exp(−‖x_a − x_b‖²/σ²), with σ² the
median of the non-zero squared distances. A batch of one has neither term.

As in the authors' code (methods-1.md §14, item 9), features are not normalised, though
the paper calls them hyperspherical. The median takes part in the gradient.
``normalise`` and ``detach_scale`` change that. The code averages batch-norm statistics
too, as ``training.buffers = "average"`` does.
"""

from typing import Any

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.methods.base import Batch, parts, search
from hpcfl.methods.fedavg import FedAvg

FLOOR = 1e-12  # added under the square root, because its gradient at 0 is not a number


def compute_variance_gap(probabilities: Tensor) -> Tensor:
    """Return V, the mean over classes of max(0, 1/√K − standard deviation).

    K different one-hot predictions have the standard deviation 1/√K in each class.

    Args:
        probabilities: Predicted probabilities [b, K].
    """
    spread = (probabilities.var(dim=0) + FLOOR).sqrt()
    of_one_hot: float = probabilities.shape[1] ** -0.5
    return (of_one_hot - spread).clamp(min=0).mean()


def compute_closeness(features: Tensor, detach: bool) -> Tensor:
    """Return U, in (0, 1].

    Args:
        features: The features [b, d].
        detach: Whether the median is a constant in the gradient.
    """
    first, second = torch.triu_indices(
        len(features), len(features), 1, device=features.device
    )
    # From differences, because ‖a‖² + ‖b‖² − 2ab loses all digits for close pairs.
    squares = (features[first] - features[second]).square().sum(dim=1)
    scale = compute_median_above_zero(squares)
    return (-squares / (scale.detach() if detach else scale)).exp().mean()


def compute_median_above_zero(values: Tensor) -> Tensor:
    """Return the lower median of the nonzero ``values`` [m] ≥ 0; 1 if all are zero."""
    ordered = torch.where(values > 0, values, torch.inf).sort().values
    count = (values > 0).sum()
    return torch.where(
        count > 0, ordered.gather(0, ((count - 1) // 2).clamp(min=0)[None])[0], 1.0
    )


class FedUV(FedAvg):
    """State and traffic of FedUV.

    Server: ``model`` [P]. Client: none. Down P, up P.
    """

    reference = "Son et al., CVPR 2024"
    needs_head = "any"
    lam: float = Field(
        2.5,
        ge=0,
        description="strength λ of the variance of predictions (K/4 is usual)",
        json_schema_extra=search(
            [0.25, 2.5, 25.0],
            "no range in the paper: a tenth and ten times the default",
        ),
    )
    mu: float = Field(
        0.5,
        ge=0,
        description="strength μ of the uniformity of features; with λ = 0 too it is FedAvg",
        json_schema_extra=search(
            [0.05, 0.5, 5.0], "no range in the paper: a tenth and ten times the default"
        ),
    )
    normalise: bool = Field(
        False,
        description="normalise the features in U, as in the paper's text",
    )
    detach_scale: bool = Field(
        False, description="treat the median σ² as a constant in the gradient"
    )

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        if not (self.lam or self.mu) or len(batch.y) < 2:
            return super().loss(model, batch, lane)
        features = parts(model).features(batch.x)
        logits = parts(model).head(features)
        if self.normalise:
            features = functional.normalize(features, dim=1, eps=1e-12)
        fit = functional.cross_entropy(logits, batch.y)
        varied: Tensor = lane.regulariser(
            self.lam * compute_variance_gap(logits.softmax(dim=1))
        )
        uniform: Tensor = lane.regulariser(
            self.mu * compute_closeness(features, self.detach_scale)
        )
        return fit + varied + uniform


plugin = FedUV
