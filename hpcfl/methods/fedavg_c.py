"""FedAvg-C: FedAvg whose clients fine-tune the global model before local training in
every round.

FedALA (Zhang et al., AAAI 2023) uses this baseline without further description.
methods-1.md §4.4 explains the choices here: a client fine-tunes for ``tune_epochs``, is
scored, trains on and uploads the result. The paper does not give the epochs of
fine-tuning; its timings suggest about 14. A straggler does only a part of both
trainings, so its ``pre`` has less fine-tuning, unless only the score uses it.
"""

from pydantic import Field, NonNegativeInt
from torch import Tensor

from hpcfl.methods.base import ClientModel, Fleet, Inbox, search
from hpcfl.methods.fedavg import FedAvg


class FedAvgC(FedAvg):
    """State and traffic of FedAvg-C.

    Server: ``model`` [P]. Client: none. Down P, up P. ``pre`` scores the fine-tuned
    model.
    """

    reference = "baseline of Zhang et al., AAAI 2023"
    keeps = ("ala", "aggregation")
    short = {"tune_epochs": 1}
    tune_epochs: NonNegativeInt = Field(
        10,
        description="epochs of fine-tuning; 0 is FedAvg, or FedProx for FedProx-C",
        json_schema_extra=search(
            [1, 2, 5, 10], "no range in the papers: the default and fewer"
        ),
    )
    tuned_upload: bool = Field(
        True,
        description="continue training from the fine-tuned model; false: only score it",
    )

    def fine_tune(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        """Return the models ``[n, P]`` after fine-tuning from ``rows``."""
        return fleet.train(
            rows,
            epochs=self.tune_epochs,
            phase="tune",
            variables=self.loss_variables(fleet, inbox),
            proximal=self.proximal_term(fleet, inbox),
        )

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        start = super().start(fleet, inbox)
        return self.fine_tune(fleet, start, inbox) if self.tuned_upload else start

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        if trained or self.tuned_upload:
            return ClientModel(rows)
        return ClientModel(self.fine_tune(fleet, rows, inbox))


plugin = FedAvgC
