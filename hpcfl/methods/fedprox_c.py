"""FedProx-C: FedProx whose clients fine-tune the global model first; the proximal term
acts in both phases.

A baseline of FedALA (Zhang et al., AAAI 2023); what is done here is chosen in
methods-1.md §4.4.
"""

from hpcfl.methods.fedavg_c import FedAvgC
from hpcfl.methods.fedprox import FedProx


class FedProxC(FedAvgC, FedProx):
    """FedAvg-C's rounds with FedProx's local objective, state and messages as theirs. μ
    = 0 is FedAvg-C.
    """


plugin = FedProxC
