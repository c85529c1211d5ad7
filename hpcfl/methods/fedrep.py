"""FedRep: a shared body and private heads; a client fits its head to the received body
and then trains the body.

Collins et al., "Exploiting shared representations for personalized federated learning",
ICML 2021. Phase A trains h_i for τ epochs while the body is frozen, with its batch-norm
statistics. Phase B trains b for the experiment's epochs while the head is frozen. Each
phase has a fresh optimiser. With ``shared`` the phases train the private and the shared
parameters. The authors' code instead splits one number of epochs between the phases,
and trains all clients once more at the end.
"""

from pydantic import Field, NonNegativeInt
from torch import Tensor

from hpcfl.methods.base import Fleet, Inbox, search
from hpcfl.methods.fedper import FedPer


class FedRep(FedPer):
    """State and traffic of FedRep.

    Server: ``model`` [P], the shared body followed by the initial head. Client:
    ``head`` [P_h]. Down P_b, up P_b.
    """

    reference = "Collins et al., ICML 2021"
    head_epochs: NonNegativeInt = Field(
        5,
        description="epochs τ on the head, before the epochs on the body "
        "(FedALA 5, FedNH 10)",
        json_schema_extra=search(range(1, 11), "FedALA"),
    )

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        shared = self.list_shared_names(fleet.layout)
        private = self.list_private_names(fleet.layout)
        variables = self.loss_variables(fleet, inbox)
        if private:
            rows = fleet.train(
                rows,
                params=private,
                epochs=self.head_epochs,
                phase="head",
                variables=variables,
            )
        return fleet.train(rows, params=shared, variables=variables)


plugin = FedRep
