"""LG-FedAvg: each client keeps private lower layers, and the upper layers are shared,
the opposite of FedPer.

Liang et al., "Think locally, act globally: Federated learning with local and global
representations", arXiv 2001.01523, 2020. A client trains (b_i, g) as one model; the
shared layers become g ← Σ_S p_i g_i, and the body b_i never leaves its client. The
result is ``pre``, before local training.

The authors' code begins with a FedAvg model of 400 to 1,200 rounds. It reports each
client's best model over the rounds, selected on its test samples. Here training begins
from scratch, as in later papers, and nothing is selected. With their network for
CIFAR-10 that code shares the convolutions and keeps the classifier private; FL-bench
counts the shared layers from below. Both are the opposite of the text, which is
followed here. They average uniformly, as with ``weights = "uniform"``. PFLlib weights
by samples, as the default here, so that a comparison with FedAvg isolates the method
(methods-3.md §5).
"""

from pydantic import Field

from hpcfl.methods._shared_part import SharedHead
from hpcfl.methods.base import Layers, Layout


class LGFedAvg(SharedHead):
    """State and traffic of LG-FedAvg.

    Server: ``model`` [P], the initial body under the shared layers. Client: ``body`` [P
    − P_g]. Down P_g, up P_g, by default those of the head.
    """

    reference = "Liang et al., arXiv 2001.01523"
    trains = {"body": "nothing would be personal"}
    layers: Layers = Field(
        1,
        description='number of shared upper layers (the authors 2 of 5); "all" is FedAvg',
    )

    def find_shared_columns(self, layout: Layout) -> slice:
        return layout.columns(self.layers)


plugin = LGFedAvg
