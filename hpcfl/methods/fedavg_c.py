"""FedAvg-C: FedAvg whose clients fine-tune the global model for their own initialisation in every round.

A baseline of FedALA (Zhang et al., AAAI 2023), which says no more than that; specification chosen
in methods-1.md §4.4: fine-tune for ``tune_epochs``, score, train on, send up. How many epochs the paper used
is not given (timings suggest about 14).
"""

from pydantic import Field, NonNegativeInt
from torch import Tensor

from hpcfl.fleet import Fleet
from hpcfl.methods.base import ClientModel, State
from hpcfl.methods.fedavg import FedAvg


class FedAvgC(FedAvg):
    """Server: ``model`` [P]. Client: nothing. Down P, up P. ``pre`` is the fine-tuned model."""

    reference = "baseline of Zhang et al., AAAI 2023"
    tune_epochs: NonNegativeInt = Field(10, description="epochs of fine-tuning; 0 is the method without -C")
    tuned_upload: bool = Field(True, description="train on from the fine-tuned model; else it is only scored")

    def tuned(self, fleet: Fleet, rows: Tensor, inbox: State) -> Tensor:
        """The models after fine-tuning, ``[n, P]``."""
        return self.fit(fleet, rows, inbox, phase="tune", epochs=self.tune_epochs)

    def start(self, fleet: Fleet, inbox: State) -> Tensor:
        start = super().start(fleet, inbox)
        return self.tuned(fleet, start, inbox) if self.tuned_upload else start

    def client_model(self, fleet: Fleet, inbox: State, rows: Tensor, trained: bool) -> ClientModel:
        return ClientModel(rows if trained or self.tuned_upload else self.tuned(fleet, rows, inbox))


plugin = FedAvgC
