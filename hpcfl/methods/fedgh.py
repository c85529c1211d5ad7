"""FedGH: clients keep their bodies; the server trains the shared head on the clients'
mean class features.

Yi et al., "FedGH: Heterogeneous federated learning with generalized global header", ACM
MM 2023. A client trains (b_i, g) as one model. For each class k that it holds, it then
sends the mean μ_ik of its features b_i(x), computed in evaluation mode. Its trained
head is discarded. The server trains g further by SGD on the cross-entropy of g(μ_ik)
and k, with each (μ_ik, k) as one sample of equal weight. The result is ``pre``, before
local training: the client's body with the received head.

PFLlib's server trains the head object of client 0, which that client's local training
moves as well. Here, as in HtFLlib, the server has a separate head (methods-3.md §12).
The steps are plain as in HtFLlib, and its learning rate and epochs are the defaults
here. The server's mini-batches are as large as the clients'. Without any features g
stays unchanged.
"""

import torch
import torch.nn.functional as functional
from pydantic import Field, NonNegativeInt
from torch import Tensor
from torch.func import functional_call

from hpcfl.clients.synthetic import descend_by_batches, draw_batches
from hpcfl.methods._shared_part import SharedHead
from hpcfl.methods.base import (
    UNWEIGHTED,
    Cohort,
    Fleet,
    Inbox,
    Message,
    Sent,
    State,
    search,
)
from hpcfl.methods.fedproto import compute_features


class FedGH(SharedHead):
    """State and traffic of FedGH.

    Server: ``model`` [P], the initial body under the head g. Client: ``body`` [P_b].
    Down P_h; up d + 1 for each class held, its mean features and its number.
    """

    reference = "Yi et al., ACM MM 2023"
    readers = UNWEIGHTED
    needs_head = "trained"
    short = {"server_epochs": 3}
    server_lr: float = Field(
        0.01,
        gt=0,
        description="learning rate of the head on the server (HtFLlib 0.01, PFLlib 1)",
        json_schema_extra=search([0.01, 0.1, 1.0], "between HtFLlib's and PFLlib's"),
    )
    server_epochs: NonNegativeInt = Field(
        100,
        description="epochs of the head on the server (HtFLlib 100, PFLlib 1)",
        json_schema_extra=search([1, 10, 100], "between PFLlib's and HtFLlib's"),
    )

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        means = fleet.class_means(trained, compute_features)
        floats = (fleet.counts > 0).sum(dim=1) * (means.shape[2] + 1)
        return {"means": Sent(means.flatten(1), floats)}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        setup, layout = cohort.setup, cohort.layout
        held = cohort.counts > 0
        means = uplink["means"].view(*held.shape, -1)[held]
        labels = held.nonzero()[:, 1]
        head = setup.template().get_submodule("head")
        tensors = layout.split(server["model"])
        names = layout.list_members(("head",))
        start = {name.removeprefix("head."): tensors[name] for name in names}

        def objective(free: State, batch: Tensor) -> Tensor:
            logits = functional_call(head, free, (means[batch],))
            return functional.cross_entropy(logits, labels[batch])

        key = "head", cohort.round
        order = draw_batches(setup, len(labels), self.server_epochs, *key)
        fitted = descend_by_batches(start, objective, self.server_lr, order)
        trained_head = torch.cat([part.flatten() for part in fitted.values()])
        super().aggregate(server, cohort, {"head": trained_head})


plugin = FedGH
