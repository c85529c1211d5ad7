"""PM(L): accuracy on a shared test set, each class weighted by its share of the
client's training samples.

The score comes from FedNH; see protocols.md E2.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from hpcfl.scores.base import Block, Score


class Personalised(Score):
    """Accuracy with the client's own class weights α: Σ_c α_c · correct_c / Σ_c α_c ·
    tested_c.

    The score is NaN if all weights are zero. Dai et al., "Tackling data heterogeneity
    in federated learning with class prototypes", AAAI 2023.
    """

    shared_test = True

    @abstractmethod
    def weights(self, trained: Tensor) -> Tensor:
        """Return α [n, classes] from the numbers of training samples ``trained`` [n,
        classes].
        """

    def sums(self, block: Block) -> Tensor:
        return torch.cat([block.right_by_class, block.tested_by_class], dim=1)

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        correct, tested = sums.chunk(2, dim=1)
        alpha = self.weights(trained)
        return (alpha * correct).sum(dim=1) / (alpha * tested).sum(dim=1)


class PML(Personalised):
    def weights(self, trained: Tensor) -> Tensor:
        return trained / trained.sum(dim=1, keepdim=True)


plugin = PML
