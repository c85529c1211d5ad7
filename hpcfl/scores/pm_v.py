"""PM(V): accuracy on a shared test set, restricted to the classes that the client
trains on (FedNH; protocols.md E2).
"""

from torch import Tensor

from hpcfl.scores.pm_l import Personalised


class PMV(Personalised):
    def weights(self, trained: Tensor) -> Tensor:
        return (trained > 0).double()


plugin = PMV
