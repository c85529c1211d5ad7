"""PM(L): accuracy on a shared test set, each class weighted by its share of the
client's training samples.

The score comes from FedNH; see protocols.md E2.
"""

from torch import Tensor

from hpcfl.scores.personalised import Personalised


class PML(Personalised):
    def weights(self, trained: Tensor) -> Tensor:
        return trained / trained.sum(dim=1, keepdim=True)


plugin = PML
