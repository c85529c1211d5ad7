"""FedBN: the server averages all layers except batch norm, which each client keeps.

Li et al., "FedBN: Federated learning on non-IID features via local batch
normalization", ICLR 2021. The scale, shift and statistics of a client's batch norm are
never sent. The result is ``pre``, before local training: the averaged layers with the
client's own batch norm. For a model without batch norm this is FedAvg.

The paper averages uniformly. Here clients are weighted by samples, as in FedAvg, so
that a comparison isolates the method (methods-2.md §12). ``weights = "uniform"`` gives
the paper's mean.
"""

from torch import Tensor

from hpcfl.methods.base import (
    Audience,
    ClientModel,
    Cohort,
    Fleet,
    Inbox,
    Mean,
    Message,
    Sent,
    Setup,
    State,
)
from hpcfl.methods.fedavg import ServerModel


class FedBN(ServerModel):
    """State and traffic of FedBN; P_n parameters are batch norm's.

    Server: ``model`` [P], with the initial batch norm. Client: ``norm`` [P_n]. Down P −
    P_n, up P − P_n. ``global`` scores the averaged layers with the initial scale and
    shift.
    """

    family = "a shared body"
    reference = "Li et al., ICLR 2021"

    def notes(self, setup: Setup) -> list[str]:
        lines = []
        if not len(setup.layout.batch_norm):
            lines.append(
                "fedbn: this model has no trained batch norm, so the run equals FedAvg"
            )
        if setup.training.buffers == "average":
            lines.append(
                "fedbn: training.buffers = 'average' shares the statistics of batch norm"
            )
        return lines

    def client_state(self, setup: Setup) -> State:
        return {
            **super().client_state(setup),
            "norm": setup.initial()[setup.layout.batch_norm],
        }

    def send(self, server: State, audience: Audience) -> Message:
        layout = audience.layout
        # Clients compute the initial batch norm from the seed, so it counts no floats.
        floats = layout.width - len(layout.batch_norm)
        return {"model": Sent(server["model"], floats=floats)}

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        columns = fleet.layout.batch_norm.to(inbox["model"].device)
        rows = fleet.rows(inbox["model"])
        return rows.index_copy(1, columns, fleet.state["norm"])

    def other_models(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> dict[str, ClientModel]:
        return {} if trained else {"global": ClientModel(inbox["model"])}

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        columns = fleet.layout.batch_norm.to(trained.device)
        fleet.state["norm"] = trained[:, columns]

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        layout = fleet.layout
        floats = layout.width - len(layout.batch_norm)
        return {"model": Mean(trained, self.shares(fleet), floats=floats)}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        columns = cohort.layout.batch_norm.to(uplink["model"].device)
        initial_norm = server["model"][columns]
        server["model"] = uplink["model"].index_copy(0, columns, initial_norm)


plugin = FedBN
