"""APPLE: each client learns a combination of all clients' core models and mixes them
for every mini-batch.

Luo & Wu, "Adapt to adaptation: learning personalization for cross-silo federated
learning", IJCAI 2022. Client i has a core model C_i and a vector of directed
relationships a_i ∈ R^M; its model is w_i = Σ_j a_ij C_j. It minimises F_i(w_i) + λ_r
(μ/2)‖a_i − p‖² over C_i and a_i, with p the clients' shares of the samples. The other
cores are constant. Let g = ∇F_i(w_i). At each mini-batch C_i moves along M·a_ii·g by
the experiment's optimiser. The relationships take the step a_ij ← a_ij − η₂(⟨g, C_j⟩ +
λ_r μ (a_ij − p_j)). a_i starts at p. The penalty fades out over the first LR of the R
rounds: λ_r = (cos(πr/LR) + 1)/2 for r = 0, 1, … < LR, then 0. The client uploads C_i.

The factor M comes from PFLlib, the source of most published tables, and not from the
paper. Without it C_i is M times slower (``times_clients = false``). PFLlib also uploads
w_i, and replaces the inner product ⟨g, C_j⟩ by a mean over all parameters. Both are
left out here (methods-1.md §11, item 9). In the paper all clients take part in every
round. Here absent clients' cores keep their last upload, as DiversiFed's Table VII
requires.
"""

import math

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods.base import (
    UNWEIGHTED,
    Audience,
    ClientModel,
    Cohort,
    Fleet,
    Inbox,
    Message,
    Method,
    Pool,
    Setup,
    State,
    StepContext,
    search,
)
from hpcfl.rows import mixing


class Apple(Method):
    """State and traffic of APPLE.

    Server: ``cores`` [M, P]. Client: ``relations`` a_i [M]. Down (M − 1)·P (the others'
    cores), up P.
    """

    primary = "post"
    family = "mixed by clients"
    no_newcomers = (
        "because its model is a mix of the training clients' cores and its own core"
    )
    reference = "Luo & Wu, IJCAI 2022"
    readers = UNWEIGHTED
    needs_rounds = True
    relation_lr: float = Field(
        0.01,
        ge=0,
        description="learning rate η₂ of the relationships",
        json_schema_extra=search([0.1, 0.05, 0.01, 0.005, 0.001], "FedALA"),
    )
    mu: float = Field(
        0.1,
        ge=0,
        description="strength μ of the penalty on the distance of relationships from the "
        "shares of samples",
        json_schema_extra=search([1.0, 0.1, 0.01, 0.001], "FedALA"),
    )
    period: float = Field(
        0.2,
        ge=0,
        le=1,
        description="share L of the rounds during which this penalty fades out",
        json_schema_extra=search([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], "FedALA"),
    )
    times_clients: bool = Field(
        True,
        description="multiply the core's gradient by M, because a_ii ≈ 1/M makes it M "
        "times smaller",
    )

    def server_state(self, setup: Setup) -> State:
        return {"cores": mixing.repeat(setup.initial(), setup.clients)}

    def client_state(self, setup: Setup) -> State:
        return {"relations": compute_shares(setup)}

    def send(self, server: State, audience: Audience) -> Message:
        receivers = torch.from_numpy(audience.ids)[:, None]
        numbers = torch.arange(len(server["cores"]) - 1)
        # All clients except the receiver itself, ascending.
        others = numbers + (numbers >= receivers)
        return {"cores": Pool(server["cores"], others)}

    def prepare(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Add the clients' ``ids`` [n] and ``itself``, bool [n, M], with True at each
        client's own number.
        """
        cores = inbox["cores"]
        ids = torch.from_numpy(fleet.ids).to(cores.device)
        return {
            **inbox,
            "ids": ids,
            "itself": torch.nn.functional.one_hot(ids, len(cores.rows)).bool(),
        }

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        # A client's core is its last upload.
        cores: Tensor = inbox["cores"].take(inbox["ids"])
        return cores

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        relations = fleet.state["relations"]
        cores = inbox["cores"].rows
        return ClientModel(combine(relations, inbox["itself"], rows, cores))

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        cores = inbox["cores"].rows
        rate = self.relation_lr
        own = self.start(fleet, inbox)
        target = compute_shares(fleet.setup).to(own)
        penalty = self.mu * self.compute_fading(fleet)
        gain = len(cores) if self.times_clients else 1
        self.score(fleet, inbox, own)

        def step(context: StepContext) -> None:
            relation = context.variables["relations"]
            itself = context.variables["itself"]
            core = context.rows()
            gradient = context.gradient(combine(relation, itself, core, cores))
            drawn = relation - target
            descent = compute_slopes(gradient, itself, core, cores) + penalty * drawn
            context.variables["relations"] = relation - rate * descent
            context.regulariser(penalty / 2 * drawn.square().sum(dim=1))
            context.optimizer_step(gain * get_own_shares(relation, itself) * gradient)

        variables = {
            "relations": fleet.state["relations"],
            "itself": inbox["itself"],
        }
        trained, after = fleet.train_by(step, own, variables=variables)
        fleet.state["relations"] = after["relations"]
        self.score(fleet, inbox, trained, trained=True)
        return {"core": trained}

    def compute_fading(self, fleet: Fleet) -> float:
        """Return λ_r in this round; the paper counts rounds from 0."""
        progress = fleet.round - 1
        length = self.period * fleet.setup.rounds
        if progress >= length:
            return 0.0
        return (math.cos(math.pi * progress / length) + 1) / 2

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        ids = torch.from_numpy(cohort.ids)
        server["cores"] = mixing.replace(server["cores"], ids, uplink["core"])


def combine(relations: Tensor, itself: Tensor, own: Tensor, cores: Tensor) -> Tensor:
    """Return w_i = Σ_j a_ij C_j ``[n, P]`` for ``relations`` a [n, M] and ``cores`` C
    [M, P].

    The client's own core comes from ``own`` [n, P] instead of ``cores``, because it
    changes during training. If a is a unit vector, the result is its core exactly.

    Args:
        relations: The relationships a [n, M].
        itself: Mask of each client's own number, bool [n, M].
        own: The clients' own cores [n, P].
        cores: The cores C [M, P].
    """
    others = mixing.multiply_lanes(relations.masked_fill(itself, 0), cores)
    return others + get_own_shares(relations, itself) * own


def get_own_shares(relations: Tensor, itself: Tensor) -> Tensor:
    """Return a_ii ``[n, 1]``.

    It is computed as a sum, because indexing with a mask on a GPU would block the host.
    """
    return (relations * itself).sum(dim=1, keepdim=True)


def compute_slopes(
    gradient: Tensor, itself: Tensor, own: Tensor, cores: Tensor
) -> Tensor:
    """Return ∂F_i/∂a_ij = ⟨∇F_i(w_i), C_j⟩ ``[n, M]`` for the ``gradient`` [n, P].

    The other arguments are those of ``combine``.
    """
    others = mixing.multiply_lanes(gradient, cores.T)
    return torch.where(itself, (gradient * own).sum(dim=1, keepdim=True), others)


def compute_shares(setup: Setup) -> Tensor:
    """Return p [M], every client's share of the training samples."""
    return (setup.samples / setup.samples.sum()).float()


plugin = Apple
