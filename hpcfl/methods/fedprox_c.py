"""FedProx-C: FedProx whose clients fine-tune the global model first; the proximal term
acts in both phases.

This is a baseline of FedALA (Zhang et al., AAAI 2023). methods-1.md §4.4 explains the
choices here.
"""

from hpcfl.methods.fedavg_c import FedAvgC
from hpcfl.methods.fedprox import FedProx


class FedProxC(FedAvgC, FedProx):
    """FedAvg-C with FedProx's local objective.

    State and traffic are those of FedAvg-C. μ = 0 is FedAvg-C.
    """


plugin = FedProxC
