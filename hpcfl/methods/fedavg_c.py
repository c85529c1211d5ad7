"""FedAvg-C: FedAvg whose clients fine-tune the global model for their own initialisation in every round.

A baseline of FedALA (Zhang et al., AAAI 2023), which says no more than that; specification chosen in methods-1.md §4: fine-tune
for ``tune_epochs``, score, train on, send up. How many epochs the paper used is not given (timings suggest about 14).
"""

from pydantic import Field, NonNegativeInt
from torch import Tensor

from hpcfl.fleet import Fleet
from hpcfl.message import Message
from hpcfl.methods.base import State
from hpcfl.methods.fedavg import FedAvg


class FedAvgC(FedAvg):
    """Server: ``model`` [P]. Client: nothing. Down P, up P. ``pre`` is the fine-tuned model."""

    reference = "baseline of Zhang et al., AAAI 2023"
    tune_epochs: NonNegativeInt = Field(10, description="epochs of fine-tuning; 0 is the method without -C")
    tuned_upload: bool = Field(True, description="train on from the fine-tuned model; else it is only scored")

    def start(self, fleet: Fleet, inbox: State) -> Tensor:
        return self.fit(fleet, super().start(fleet, inbox), inbox, phase="tune", epochs=self.tune_epochs)

    def update(self, fleet: Fleet, inbox: State) -> Message:
        if self.tuned_upload:
            return super().update(fleet, inbox)
        if fleet.scored:
            with fleet.trial():
                self.observe(fleet, inbox)
        trained = self.fit(fleet, self.received(fleet, inbox), inbox)
        fleet.score("post", trained)
        return {"model": trained}


plugin = FedAvgC
