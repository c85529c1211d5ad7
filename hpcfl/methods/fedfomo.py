"""FedFomo: each client weights other clients' models by their benefit on its validation
samples.

Zhang et al., "Personalized federated learning with first order model optimization",
ICLR 2021. Let b_i be the starting model of client i's last training and L_i the loss on
its validation samples. Every received model w_n, and the client's last model, has the
weight ω_n = (L_i(b_i) − L_i(w_n)) / (‖w_n − b_i‖₂ + 1e-5). The client starts from Σ
max(ω_n, 0) w_n / Σ max(ω_n, 0), or from its own model if no ω is positive. The server
sums each client's ω over the rounds and sends it the models with the largest sums.

Deviations from the reference codes (methods-1.md §10, item 9): the validation samples
are a seeded stratified choice, excluded from training and from counts. The loss is a
mean over samples in evaluation mode. The server sends only uploaded models. There is no
ε-greedy choice of models; it makes no difference with ``received = "all"``.
"""

from typing import Literal

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from hpcfl.methods.base import (
    UNWEIGHTED,
    Audience,
    Cohort,
    Fleet,
    Inbox,
    Message,
    Method,
    Pool,
    Sent,
    Setup,
    State,
    search,
)
from hpcfl.rows import mixing

NEAR = 1e-5  # keeps ω finite for the base model itself


def compute_usefulness(base_loss: Tensor, losses: Tensor, distances: Tensor) -> Tensor:
    """Return the weights ω of m models, float64 [m].

    Args:
        base_loss: The loss of the base model, a scalar.
        losses: The losses of the models [m].
        distances: The Euclidean distances of the models from the base model [m].
    """
    return (base_loss - losses) / (distances + NEAR)


class FedFomo(Method):
    """State and traffic of FedFomo.

    Server: ``models`` [M, P], last uploads; ``uploaded`` [M], the clients with an
    upload; ``affinity`` [M, M], summed ω. Client: ``model`` [P]; ``base`` b_i [P]. Down
    m·P, the models of m others; up P and m + 1 floats, their ω and that of the client's
    own.
    """

    primary = "post"
    client_models = ("model", "base")
    family = "mixed by clients"
    reference = "Zhang et al., ICLR 2021"
    readers = UNWEIGHTED
    received: NonNegativeInt | Literal["all"] = Field(
        "all",
        description="maximal number of other clients' models sent to a client; 0 is Local",
    )
    validation: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="share of the training samples held out for validation; 0 is Local",
        json_schema_extra=search(
            [0.1, 0.2, 0.4], "no range in the paper: half and twice the default"
        ),
    )

    def validation_share(self) -> float:
        return self.validation

    def server_state(self, setup: Setup) -> State:
        return {
            "models": mixing.repeat(setup.initial(), setup.clients),
            "affinity": torch.eye(setup.clients).double(),
            "uploaded": torch.zeros(setup.clients, dtype=torch.bool),
        }

    def send(self, server: State, audience: Audience) -> Message:
        return self.make_offer(server, audience, server["affinity"][audience.ids])

    def send_to_newcomers(self, server: State, audience: Audience) -> Message:
        shape = len(audience.ids), audience.setup.clients
        unknown = torch.zeros(shape).double()
        return self.make_offer(server, audience, unknown)

    def make_offer(
        self, server: State, audience: Audience, affinity: Tensor
    ) -> Message:
        """Return the message to the clients.

        Args:
            server: The server's state.
            audience: The clients.
            affinity: The summed ω of the clients for all models, [n, M].
        """
        senders = server["uploaded"].nonzero()[:, 0]
        if not len(senders) or self.received == 0:
            return {}
        receivers = torch.from_numpy(audience.ids)
        itself = receivers[:, None] == senders
        of_others = affinity[:, senders].masked_fill(itself, -torch.inf)
        ranked = of_others.sort(dim=1, descending=True, stable=True)
        is_other = ranked.values > -torch.inf
        picks = torch.where(is_other, ranked.indices, -1)
        if self.received != "all":
            picks = picks[:, : self.received]
        models = mixing.pick(server["models"], senders)
        return {"models": Pool(models, picks), "senders": Sent(senders, floats=0)}

    def prepare(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Add ``start`` [n, P], the models before training, and ``omega`` [n, M], 0 for
        models not received.
        """
        models = fleet.state["model"]
        base = fleet.state["base"]
        shape = len(models), fleet.setup.clients
        omega = torch.zeros(shape, dtype=torch.float64, device=models.device)
        if "models" not in inbox:
            return {**inbox, "start": models, "omega": omega}
        pool = inbox["models"]
        pool_losses = fleet.loss_of(pool, "validation")
        own_losses = fleet.loss_of(models, "validation")
        base_losses = fleet.loss_of(base, "validation")
        ids = torch.from_numpy(fleet.ids).to(pool.device)
        start = models.clone()
        # One client at a time, because a client's bits must not depend on its
        # neighbours.
        for i in range(len(models)):
            client = slice(i, i + 1)
            received = pool.picks[i] >= 0
            picks = pool.picks[i][received]
            # The received models, and the client's last model.
            others = [pool.rows[pick] for pick in picks.tolist()]
            candidates = mixing.stack_on_device([*others, models[i]], pool.rows.device)
            losses = torch.cat([pool_losses[i][received], own_losses[client]])
            candidate_ids = torch.cat([inbox["senders"][picks], ids[client]])
            distances = mixing.compute_distances(base[client], candidates)[0]
            useful = compute_usefulness(base_losses[i], losses, distances)
            positive = useful.clamp(min=0)
            if (useful > 0).any():
                start[i] = mixing.average(positive / positive.sum(), candidates)
            # A newcomer's own id has no column.
            has_column = candidate_ids < omega.shape[1]
            omega[i, candidate_ids[has_column]] = useful[has_column]
        return {**inbox, "start": start, "omega": omega}

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        start: Tensor = inbox["start"]
        return start

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        trained = fleet.train(start)
        self.score(fleet, inbox, trained, trained=True)
        fleet.state["base"] = fleet.rows(start).clone()
        fleet.state["model"] = trained
        floats = 0
        if "models" in inbox:
            # Each client sends the weights of the received models and of its own.
            received = (inbox["models"].picks >= 0).sum(dim=1)
            floats = received + 1
        return {"model": trained, "usefulness": Sent(inbox["omega"], floats)}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        ids = torch.from_numpy(cohort.ids)
        server["models"] = mixing.replace(server["models"], ids, uplink["model"])
        server["uploaded"] = server["uploaded"].index_fill(0, ids, True)
        server["affinity"] = server["affinity"].index_add(0, ids, uplink["usefulness"])


plugin = FedFomo
