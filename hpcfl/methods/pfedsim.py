"""pFedSim: FedAvg as a warm-up, then mixes of bodies weighted by the similarity of the
clients' heads.

Tan et al., "pFedSim: Similarity-aware model aggregation towards personalized federated
learning", arXiv 2305.15706, 2023. For ⌊warmup·T⌋ of T rounds it is FedAvg; its model w
then becomes the model of every client. From then on each round computes the similarity
ψ_ij of two clients of its cohort. It is max(0, mean over classes c of the cosine of row
c of their heads' weights). ψ_ij is valid until both are in one cohort again; before the
first time it is 0. Client i continues from its last head and the body Σ_j a_ij b_j over
the last models of all clients. The weights are a_ij ∝ −ln(1 − ψ_ij) with ψ_ii = 0.9999,
so a client without any similarity keeps its body. The result is ``post``, after
training.

As in FL-bench, by the paper's first author, ψ is at most 0.9999, so that the logarithm
is finite, and biases of the heads are ignored. Clients without a round since the
warm-up hold w (methods-3.md §21). The warm-up depends on the number of rounds, so a
finished run cannot be continued.
"""

from typing import ClassVar

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor

from hpcfl.methods._server_model import ServerModel
from hpcfl.methods.base import (
    Audience,
    ClientModel,
    Cohort,
    Fleet,
    Inbox,
    Mean,
    Message,
    Setup,
    State,
    search,
)
from hpcfl.rows import mixing

MOST_ALIKE = 0.9999  # upper limit of similarities, for finite weights


class PFedSim(ServerModel):
    """State and traffic of pFedSim.

    Server: ``model`` w [P], of the warm-up; after it ``models`` [M, P], each client's
    last, and ``similarity`` ψ, float64 [M, M], without its diagonal. Client: none; it
    receives its head with its body. Down P, up P.
    """

    primary = "post"
    family = "mixed on the server"
    reference = "Tan et al., arXiv 2305.15706"
    needs_head = "trained"
    only_synchronous = (
        "the entries of its messages change after the warm-up, between two rounds"
    )
    uploads_rows = "its clients upload a row each after the warm-up"
    needs_rounds: ClassVar[bool] = True
    short = {"warmup": 0.34}
    varying = ("models", "similarity")
    warmup: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of the rounds with FedAvg (FL-bench 0.5); 1 is FedAvg",
        json_schema_extra=search([0.25, 0.5, 0.75], "around FL-bench"),
    )

    def warms_up(self, setup: Setup, round: int) -> bool:
        """Return whether a round belongs to the warm-up."""
        return round <= int(self.warmup * setup.rounds + 1e-9)

    def server_state(self, setup: Setup) -> State:
        state = super().server_state(setup)
        if self.warms_up(setup, 1):
            return state
        return state | make_mixed_state(state["model"], setup.clients)

    def send(self, server: State, audience: Audience) -> Message:
        if "models" not in server:
            return super().send(server, audience)
        ids = torch.from_numpy(audience.ids)
        models = server["models"]
        body = audience.layout.columns("body")
        mixed = mixing.mix(
            compute_attention(server["similarity"])[ids], models[:, body]
        )
        own = models[ids][:, body.stop :]
        return {"body": mixed, "head": own}

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        if "model" in inbox:
            return super().received(fleet, inbox)
        return torch.cat([inbox["body"], inbox["head"]], dim=1)

    def other_models(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> dict[str, ClientModel]:
        return {}

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        if self.warms_up(fleet.setup, fleet.round):
            return {"model": Mean(trained, self.shares(fleet))}
        return {"model": trained}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        setup = cohort.setup
        if self.warms_up(setup, cohort.round):
            server["model"] = uplink["model"]
            if not self.warms_up(setup, cohort.round + 1):
                server |= make_mixed_state(server["model"], setup.clients)
            return
        ids = torch.from_numpy(cohort.ids)
        models = uplink["model"]
        server["models"] = mixing.replace(server["models"], ids, models)
        weights = models[:, cohort.layout.columns("head.weight")]
        alike = compute_similarities(weights.view(len(ids), setup.classes, -1))
        kept = server["similarity"].clone()
        kept[ids[:, None], ids] = alike
        server["similarity"] = kept

    def send_to_newcomers(self, server: State, audience: Audience) -> Message:
        """Send the model of the warm-up, as to all clients without a similarity."""
        return super().send({"model": server["model"]}, audience)


def make_mixed_state(model: Tensor, clients: int) -> State:
    """Return the server's state at the end of the warm-up: the same ``model`` [P] for
    all ``clients``, and no similarity.
    """
    return {
        "models": mixing.repeat(model, clients),
        "similarity": torch.zeros(clients, clients, dtype=torch.float64),
    }


def compute_similarities(heads: Tensor) -> Tensor:
    """Return the similarities ψ of n heads, float64 [n, n]; 0 on the diagonal and for
    rows of zeros.

    Args:
        heads: The weights of the heads, [n, K, d].
    """
    rows = functional.normalize(heads.double().cpu(), dim=2).flatten(1)
    cosines = rows @ rows.T / heads.shape[1]
    return cosines.clamp(min=0).fill_diagonal_(0)


def compute_attention(similarity: Tensor) -> Tensor:
    """Return the weights a [M, M] of the bodies from the ``similarity`` ψ [M, M]; rows
    sum to one.
    """
    capped = similarity.clamp(max=MOST_ALIKE).fill_diagonal_(MOST_ALIKE)
    weights = -torch.log1p(-capped)
    return weights / weights.sum(dim=1, keepdim=True)


plugin = PFedSim
