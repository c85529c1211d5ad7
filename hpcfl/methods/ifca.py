"""IFCA: k cluster models; a client trains the model with the best fit to its training
data.

Ghosh et al., "An efficient framework for clustered federated learning", NeurIPS 2020,
the variant that averages models, not gradients. A client receives all k models Θ_c and
trains from the one with the smallest F_i(Θ_c). The loss is computed on its training
data in evaluation mode; ties select the lowest index. Θ_c becomes the weighted mean of
the models trained from it, and stays unchanged if there are none.

The authors' code selects the scored model by test labels and averages uniformly; both
are left out here (methods-1.md §13).
"""

import torch
import torch.nn.functional as functional
from pydantic import Field, PositiveInt
from torch import Tensor

from hpcfl.methods.base import (
    Audience,
    Cohort,
    Fleet,
    Inbox,
    Mean,
    Message,
    Pool,
    Sent,
    Setup,
    State,
    search,
)
from hpcfl.methods.fedavg import ServerModel


class IFCA(ServerModel):
    """State and traffic of IFCA.

    Server: ``models`` [k, P], initially different random draws; ``chosen`` [M], each
    client's last cluster, −1 before its first round. Client: none. Down k·P, up P + 1.
    """

    reference = "Ghosh et al., NeurIPS 2020"
    family = "clusters of clients"
    clusters: PositiveInt = Field(
        2,
        le=1_000,
        description="number k of models (4 MNIST, 2 CIFAR-10, 8 CIFAR-100); "
        "1 is FedAvg",
        json_schema_extra=search([2, 4, 8], "cwFedAvg's by data set"),
    )

    def server_state(self, setup: Setup) -> State:
        return {
            "models": torch.stack(
                [setup.initial(draw) for draw in range(self.clusters)]
            ),
            "chosen": torch.full((setup.clients,), -1),
        }

    def send(self, server: State, audience: Audience) -> Message:
        return {
            "models": Pool(
                server["models"],
                torch.arange(self.clusters).repeat(len(audience.ids), 1),
            )
        }

    def prepare(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Add ``cluster`` [n], the index of each client's model."""
        return {
            **inbox,
            "cluster": fleet.loss_of(inbox["models"], "train").argmin(dim=1),
        }

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        chosen: Tensor = inbox["models"].take(inbox["cluster"])
        return chosen

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        # One mean for each cluster, over its clients.
        chosen = functional.one_hot(inbox["cluster"].cpu(), self.clusters)
        return {
            "models": Mean(trained, chosen * self.shares(fleet)[:, None]),
            "cluster": Sent(inbox["cluster"][:, None], 1),
        }

    def server_models(self, server: State) -> State:
        return {f"cluster {c}": model for c, model in enumerate(server["models"])}

    def found_clusters(self, server: State) -> Tensor:
        return server["chosen"]

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        clusters = uplink["cluster"][:, 0]
        taken = torch.isin(torch.arange(self.clusters), clusters)
        server["models"] = torch.where(
            taken[:, None], uplink["models"], server["models"]
        )
        server["chosen"] = server["chosen"].index_copy(
            0, torch.from_numpy(cohort.ids), clusters
        )


plugin = IFCA
