"""FedPAC: a shared body with features aligned to global class means, and for each
client an optimal mix of all heads.

Xu, Tong & Huang, "Personalized federated learning with feature alignment and classifier
collaboration", ICLR 2023. Let φ be the features, μ_ik and s_ik the means of φ and of
‖φ‖² over client i's samples of class k, and π_ik its share of the class. From the
received body and its head a client computes H_i = (π_ik μ_ik)_k and v_i = (Σ_k π_ik
s_ik − ‖H_i‖²)/N_i. Then it trains the head under the frozen body. It trains the body
under the frozen head on CE + λ·mean over batch and coordinates of (φ(x) − c_y)², with c
the global class means. It sends the class means of the trained body.

The server averages the bodies. It averages class means over the clients that hold the
class, by their samples of it. For each client of the cohort it minimises Σ_j α_j² v_j +
‖Σ_j α_j (H_i − H_j)‖² over α ≥ 0, Σ_j α_j = 1. This is the variance and the squared
bias of the mixed head. α_j below 0.001 are set to zero, and the others are scaled to
sum one; h_i ← Σ_j α_j h_j.

Deviations (methods-3.md §4, item 9): a class without a global mean adds no term; the
authors' code uses the client's own mean. The head's learning rate is the experiment's;
theirs is 0.1 (``head_lr``, in plain steps). The minimum is computed through the
products of the H_i, so that its matrix is never indefinite. The codes' workarounds for
indefinite matrices are left out. A client outside the cohort keeps its head.
"""

from typing import Any

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor, nn

from hpcfl.files import heartbeat
from hpcfl.methods._shared_part import SharedBody
from hpcfl.methods.base import (
    CROSS_ENTROPY,
    PLAIN_STEPS,
    Audience,
    Batch,
    Cohort,
    Fleet,
    Inbox,
    Mean,
    Message,
    Sent,
    Setup,
    State,
    parts,
    search,
)
from hpcfl.methods.fedproto import (
    compute_aligned_loss,
    compute_features,
    make_empty_prototypes,
    make_prototype_variables,
    replace_prototypes,
    select_prototypes,
)
from hpcfl.rows import mixing

LEAST_WEIGHT = 1e-3  # smallest weight of a head in a mix


class FedPAC(SharedBody):
    """State and traffic of FedPAC.

    Server: ``model`` [P], the shared body followed by the initial head; ``heads`` [M,
    P_h], the mixed head of each client; ``prototypes`` c [K, d]; ``present``, bool [K],
    the classes with a prototype. Client: none. Down P, and d for each class with a
    prototype; up P + 1, and 2d for each class held. ``pre`` scores the mixed head.
    """

    primary = "post"
    reference = "Xu et al., ICLR 2023"
    needs_head = "any"
    keeps = ("ala",)
    short = {"head_lr": 0.1}
    lam: float = Field(
        1.0,
        ge=0,
        description="strength λ of the distance to the global class means",
        json_schema_extra=search(
            [0.1, 1.0, 10.0], "no range in the paper: a tenth and ten times the default"
        ),
    )
    head_epochs: NonNegativeInt = Field(
        1,
        description="epochs on the head, before the epochs on the body",
        json_schema_extra=search(
            [1, 2, 5], "no range in the paper: the default and more"
        ),
    )
    head_lr: float | None = Field(
        None,
        gt=0,
        description="learning rate of plain steps on the head (the authors 0.1); default: "
        "the experiment's optimiser",
    )
    collaborate: bool = Field(
        True, description="mix heads; false: each client keeps its head, as in FedRep"
    )

    def list_unheeded(self) -> tuple[str, ...]:
        return () if self.head_lr is None else PLAIN_STEPS

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        if not self.lam:
            return super().loss(model, batch, lane)
        return compute_aligned_loss(model, batch, lane, self.lam)

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        return make_prototype_variables(fleet, inbox)

    def server_state(self, setup: Setup) -> State:
        state = super().server_state(setup)
        initial_head = self.cut_private_part(setup.layout, state["model"])
        heads = mixing.repeat(initial_head, setup.clients)
        return {**state, **make_empty_prototypes(setup), "heads": heads}

    def send(self, server: State, audience: Audience) -> Message:
        if audience.are_newcomers:
            # Newcomers train the initial head, like all clients in round 1.
            initial_head = self.cut_private_part(audience.layout, server["model"])
            heads = initial_head.repeat(len(audience.ids), 1)
        else:
            heads = mixing.pick(server["heads"], torch.from_numpy(audience.ids))
        return {
            **super().send(server, audience),
            "head": heads,
            "prototypes": select_prototypes(server),
            # The prototypes in the message imply this field.
            "present": Sent(server["present"], floats=0),
        }

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the shared body with each client's mixed head, ``[n, P]``."""
        return self.add_own_heads(fleet.layout, inbox, inbox["head"])

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        # Computed before training changes the body and its batch norm.
        statistics = self.compute_statistics(fleet, self.received(fleet, inbox))
        trained = super().update(fleet, inbox)
        return {**trained, **statistics}

    def compute_statistics(self, fleet: Fleet, rows: Tensor) -> Message:
        """Return the statistics of clients' features for the server.

        Returns:
            H_i [n, K·d] as ``means`` and v_i [n, 1], float64, as ``variance``.
        """
        moments = fleet.class_means(rows, compute_features_and_squares).double()
        means = moments[..., :-1]  # μ_ik [n, K, d]
        squares = moments[..., -1]  # s_ik [n, K]
        samples = fleet.samples.clamp(min=1)[:, None].to(means.device)
        shares = fleet.counts.to(means.device) / samples  # π_ik [n, K]
        weighted = (shares[..., None] * means).flatten(1)
        spread = (shares * squares).sum(dim=1) - weighted.square().sum(dim=1)
        variance = spread.clamp(min=0)[:, None] / samples
        floats = self.count_class_floats(fleet, means)
        return {"means": Sent(weighted.float(), floats), "variance": variance}

    def count_class_floats(self, fleet: Fleet, means: Tensor) -> Tensor:
        """Return the number of floats in the class means that each client sends, [n].

        Args:
            fleet: The n clients.
            means: Class means [n, K, d]; only those of a client's classes are sent.
        """
        held = (fleet.counts > 0).sum(dim=1)
        return held * means.shape[2]

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        fitted = self.fit_heads(fleet, rows)
        variables = self.loss_variables(fleet, inbox)
        return fleet.train(fitted, params=("body",), variables=variables)

    def fit_heads(self, fleet: Fleet, rows: Tensor) -> Tensor:
        """Return the models [n, P] with heads trained under the frozen body."""
        how: dict[str, Any] = {
            "loss": CROSS_ENTROPY,
            "params": ("head",),
            "epochs": self.head_epochs,
            "phase": "head",
        }
        rate = self.head_lr
        if rate is None:
            return fleet.train(rows, **how)
        fitted, _ = fleet.train_by(lambda context: context.descend(rate), rows, **how)
        return fitted

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        means = fleet.class_means(trained, compute_features)
        floats = self.count_class_floats(fleet, means)
        return {
            **super().upload(fleet, inbox, trained),
            "head": self.cut_private_part(fleet.layout, trained),
            "prototypes": Mean(means, fleet.counts, floats=floats),
        }

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        super().aggregate(server, cohort, uplink)
        replace_prototypes(server, cohort, uplink["prototypes"])
        heads = uplink["head"]
        if self.collaborate:
            weights = solve_collaboration(uplink["means"], uplink["variance"][:, 0])
            heads = mixing.mix(weights, heads)
        ids = torch.from_numpy(cohort.ids)
        server["heads"] = mixing.replace(server["heads"], ids, heads)


def compute_features_and_squares(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Return φ and ‖φ‖² [batch, d + 1]."""
    features = parts(model).features(x)
    squares = features.square().sum(dim=1, keepdim=True)
    return torch.cat([features, squares], dim=1)


def solve_collaboration(means: Tensor, variances: Tensor) -> Tensor:
    """Return the weights α [m, m], float64, of all heads in each client's mix.

    Args:
        means: The weighted class means H of m clients, [m, K·d].
        variances: The variances v, float64 [m].
    """
    centred = means.double()
    centred = centred - centred.mean(dim=0)
    products = centred @ centred.T
    weights = []
    for client in range(len(means)):
        matrix = build_objective(products, variances, client)
        weights.append(minimise_on_simplex(matrix))
        heartbeat.beat()
    return torch.stack(weights)


def build_objective(products: Tensor, variances: Tensor, client: int) -> Tensor:
    """Return the matrix P_i [m, m] of α ↦ Σ_j α_j² v_j + ‖Σ_j α_j (H_i − H_j)‖².

    Args:
        products: The inner products ⟨H_j, H_l⟩ [m, m].
        variances: The variances v [m].
        client: The index i of the client.
    """
    own = products[client]
    biases = products - own[:, None] - own + own[client]
    return biases + variances.diag()


def minimise_on_simplex(matrix: Tensor) -> Tensor:
    """Return the minimum α [m], float64, of αᵀ·matrix·α over α ≥ 0 with Σ α = 1.

    Weights below LEAST_WEIGHT are set to zero. Let matrix = AᵀA and x = s·α with Σ α =
    1. Then ‖Ax‖² + (Σx − 1)² is s²q + (s − 1)² with q = αᵀ·matrix·α. For each α its
    minimum is at s = 1/(1 + q), with the value q/(1 + q), which grows with q. So
    non-negative least squares finds α, up to its scale.
    """
    # The import takes a second, and only rank 0 needs it.
    from scipy.optimize import nnls

    largest = matrix.diagonal().max()
    # Scaling keeps rounding errors small compared with the sum of weights.
    if largest > 0:
        matrix = matrix / largest
    values, vectors = torch.linalg.eigh(matrix)
    root = values.clamp(min=0).sqrt()[:, None] * vectors.T  # A
    sum_row = torch.ones_like(root[:1])
    system = torch.cat([root, sum_row])
    target = torch.zeros_like(system[:, 0])
    target[-1] = 1
    solution, _ = nnls(system.numpy(), target.numpy())
    weights = torch.from_numpy(solution)
    weights = weights / weights.sum()
    weights = torch.where(weights < LEAST_WEIGHT, 0, weights)
    return weights / weights.sum()


plugin = FedPAC
