"""DiversiFed's first experiment: models are attracted to, or repelled from, all others."""

import torch
from pydantic import Field

from hpcfl.methods.base import Method


class Pulled(Method):
    """Method in which clients minimise L(w_i) + λ Σ_j ‖w_i − w_j‖₂.

    The w_j are the models that the other clients uploaded last.

    Server: ``models`` [M, P]. Client: ``model`` [P]. Down M·P, up P.
    """

    primary = "post"
    pull: float = Field(0.0, description="strength λ; negative values repel")

    def server_state(self, setup):
        return {"models": setup.initial().expand(setup.clients, -1).clone()}

    def client_state(self, setup):
        return {"model": setup.initial()}

    def send(self, server, audience):
        return {"models": server["models"].flatten()}

    def start(self, fleet, inbox):
        return fleet.state["model"]

    def loss(self, model, batch, lane):
        weights = torch.cat([parameter.flatten() for parameter in model.parameters()])
        apart = ((lane.others - weights).square().sum(dim=1) + 1e-12).sqrt()
        return super().loss(model, batch, lane) + lane.regulariser(
            self.pull * (apart * lane.counts).sum()
        )

    def update(self, fleet, inbox):
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        others = (
            inbox["models"].view(-1, fleet.layout.width).expand(len(fleet.ids), -1, -1)
        )
        ids = torch.from_numpy(fleet.ids)
        counts = (torch.arange(others.shape[1]) != ids[:, None]).to(others)
        trained = fleet.train(
            start, variables={"others": others.contiguous(), "counts": counts}
        )
        fleet.state["model"] = trained
        self.score(fleet, inbox, trained, trained=True)
        return {"model": trained}

    def aggregate(self, server, cohort, uplink):
        server["models"] = server["models"].index_copy(
            0, torch.from_numpy(cohort.ids), uplink["model"]
        )
