"""DiversiFed: the server pulls similar models together and pushes dissimilar ones apart; clients stay near the result.

Wu et al., "The Diversity Bonus", eqs 8–11. The server's step is one mixing matrix: with D_ij = ‖w_i − w_j‖₂, s_ij the softmax of
D_ij/τ over the others and n of them, β_ij = α(1/n − s_ij)/(τ D_ij) and z_i = (1 − Σ_j β_ij) w_i + Σ_j β_ij w_j. Where the
paper is silent (methods-1.md §7, item 9): training starts at w_i; the others are the clients that uploaded last; a client is
scored after local training.
"""

import torch
from pydantic import Field
from torch import Tensor

from hpcfl import mixing
from hpcfl.fleet import Fleet
from hpcfl.message import Message
from hpcfl.methods.base import Cohort, Method, Setup, State

COINCIDE = 1e-12  # closer models exert no force: the subgradient 0 of the norm at 0


def mixing_matrix(distances: Tensor, itself: Tensor, alpha: float, tau: float) -> tuple[Tensor, Tensor]:
    """β [m, n] and the weight [m] of a client's own model, float64, so that z = own·w + β·W.

    distances [m, n] from each receiver to each last upload; ``itself`` bool [m, n] marks its own upload. Own weight and
    β sum to one in each row; entries may be negative. With one other or none, β = 0.
    """
    others = (~itself).sum(dim=1, keepdim=True).double()  # an integer's inverse would be float32
    scaled = (distances / tau).masked_fill(itself, -torch.inf)
    attention = torch.where(others > 0, scaled.softmax(dim=1), 0)  # no other: a softmax over nothing
    acts = ~itself & (distances >= COINCIDE)
    beta = torch.where(acts, alpha * (1 / others - attention) / (tau * distances.clamp(min=COINCIDE)), 0)
    return beta, 1 - beta.sum(dim=1)


class DiversiFed(Method):
    """Server: ``models`` [M, P] last uploads, ``uploaded`` [M] who sent in the last round. Client: ``model`` [P].

    Down P (the anchor z), up P.
    """

    primary = "post"
    reference = "Wu et al., The Diversity Bonus"
    alpha: float = Field(1.0, gt=0, description="step size α of the server's gradient step")
    lam: float = Field(2.0, ge=0, description="strength λ of the proximal term (λ/2α)‖w − z‖²; 0 is Local")
    tau: float = Field(1.0, gt=0, description="temperature τ of the softmax over distances")

    def server_state(self, setup: Setup) -> State:
        return {"models": setup.initial().repeat(setup.clients, 1),
                "uploaded": torch.zeros(setup.clients, dtype=torch.bool)}

    def client_state(self, setup: Setup) -> State:
        return {"model": setup.initial()}

    def send(self, server: State, cohort: Cohort) -> Message:
        last = server["uploaded"].nonzero()[:, 0]
        if not len(last):
            return {}  # round 1: no anchor yet
        receivers = torch.from_numpy(cohort.ids)
        own, others = server["models"][receivers], server["models"][last]
        beta, stay = mixing_matrix(mixing.distances(own, others), receivers[:, None] == last, self.alpha, self.tau)
        return {"anchor": mixing.mix(beta, others).add_(own * stay[:, None].float())}

    def update(self, fleet: Fleet, inbox: State) -> Message:
        fleet.score("pre", fleet.state["model"])
        pull = (self.lam / self.alpha, inbox["anchor"]) if "anchor" in inbox else None
        trained = fleet.state["model"] = fleet.train(fleet.state["model"], pull=pull)
        fleet.score("post", trained)
        return {"model": trained}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        ids = torch.from_numpy(cohort.ids)
        server["models"] = server["models"].index_copy(0, ids, uplink["model"])
        server["uploaded"] = torch.zeros_like(server["uploaded"]).index_fill(0, ids, True)

    def observe(self, fleet: Fleet, inbox: State) -> None:
        fleet.score("pre", fleet.state["model"])
        fleet.score("post", fleet.state["model"])


plugin = DiversiFed
