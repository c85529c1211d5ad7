"""CFL: FedAvg within clusters; a cluster whose clients' updates have opposite
directions is split in two.

Sattler, Müller & Samek, "Clustered federated learning: model-agnostic distributed
multitask optimization under privacy constraints", IEEE TNNLS 2020. All clients begin in
one cluster. Let Δ_i = w_i − w_c be the update of a client of cluster c. The cluster is
split if ‖mean Δ‖ < ε₁ while max ‖Δ_i‖ > ε₂. The split minimises the largest cosine
similarity of two updates across the cut. Then every new cluster averages its own
models, so that CFL with one cluster is FedAvg bit for bit. A cluster is split only in a
round with all of its clients, only if it has at least three, and only after
``quiet_rounds`` rounds; the last two conditions come from the published codes.

The cut is single linkage as in the paper; the published codes use complete linkage
(methods-1.md §12, item 9). Averages of models are weighted by samples. As in these
codes, mean Δ is the plain mean of the cluster's clients.
"""

from typing import Literal

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from hpcfl.methods.base import (
    Audience,
    Cohort,
    Fleet,
    Inbox,
    Message,
    Pool,
    Setup,
    State,
    search,
)
from hpcfl.methods.fedavg import ServerModel
from hpcfl.rows import mixing, sums

SMALLEST = 3  # minimal number of clients in a cluster that may be split


class CFL(ServerModel):
    """State and traffic of CFL.

    Server: ``models`` [c, P]; ``cluster`` [M], the cluster of each client; ``norms``
    [c, 2], the last ‖mean Δ‖ and max ‖Δ_i‖. Client: none. Down P, up P. The norms are
    absolute, so good values of ε₁ and ε₂ depend on learning rate, epochs and model.
    """

    reference = "Sattler et al., TNNLS 2020"
    short = {"quiet_rounds": 0, "eps1": 10.0, "eps2": 0.0}
    family = "clusters of clients"
    varying = ("models", "norms")
    no_newcomers = (
        "because its cluster depends on its updates in the rounds with splits"
    )
    eps1: float = Field(
        0.4,
        ge=0,
        description="split a cluster if the norm of its mean update is below ε₁; 0 is FedAvg",
        json_schema_extra=search(
            [0.04, 0.4, 4.0], "no range in the paper: a tenth and ten times the default"
        ),
    )
    eps2: float = Field(
        0.9,
        ge=0,
        description="and if the largest norm of an update is above ε₂ (1.6 in the authors' code)",
        json_schema_extra=search(
            [0.09, 0.9, 1.6, 9.0], "cwFedAvg's, the authors', a tenth and ten times"
        ),
    )
    quiet_rounds: NonNegativeInt = Field(
        20, description="number of first rounds without a split"
    )
    linkage: Literal["single", "complete"] = Field(
        "single",
        description="linkage of the clustering; complete reproduces the published codes",
    )

    def server_state(self, setup: Setup) -> State:
        return {
            "models": setup.initial()[None],
            "cluster": torch.zeros(setup.clients, dtype=torch.int64),
            "norms": torch.zeros(1, 2).double(),
        }

    def send(self, server: State, audience: Audience) -> Message:
        return {
            "models": Pool(
                server["models"],
                server["cluster"][torch.from_numpy(audience.ids), None],
            )
        }

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        models: Pool = inbox["models"]
        return models.take(models.picks[:, 0])

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        # One row for each client, because the server needs the angles between updates.
        return {"model": trained}

    def server_models(self, server: State) -> State:
        return {f"cluster {c}": model for c, model in enumerate(server["models"])}

    def found_clusters(self, server: State) -> Tensor:
        return server["cluster"]

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        ids = torch.from_numpy(cohort.ids)
        models = list(server["models"])
        cluster = server["cluster"].clone()
        norms = list(server["norms"])
        for c in range(len(models)):
            present = cluster[ids] == c
            if not present.any():
                continue
            products = multiply_updates(uplink["model"], present, models[c])
            lengths = products.diagonal().sqrt()  # all ‖Δ_i‖, then ‖mean Δ‖
            norms[c] = torch.stack([lengths[-1], lengths[:-1].max()])
            groups = {c: present}
            is_complete = present.sum() == (cluster == c).sum()
            if is_complete and self.is_split(norms[c], len(lengths) - 1, cohort.round):
                cut = split_in_two(products[:-1, :-1], self.linkage)
                second = torch.zeros_like(present).masked_scatter(present, cut)
                groups = {c: present & ~second, len(models): second}
                cluster[ids[second]] = len(models)
                models.append(models[c])
                norms.append(norms[c])
            for number, group in groups.items():
                shares = torch.where(group, cohort.shares, 0)
                models[number] = sums.compute_mean(uplink["model"], shares)
        server["models"] = torch.stack(models)
        server["cluster"] = cluster
        server["norms"] = torch.stack(norms)

    def is_split(self, norms: Tensor, size: int, round: int) -> bool:
        """Return whether a cluster is split.

        Args:
            norms: ‖mean Δ‖ and max ‖Δ_i‖ of the cluster, [2].
            size: The number of its clients.
            round: The number of the round.
        """
        return bool(
            norms[0] < self.eps1
            and norms[1] > self.eps2
            and size >= SMALLEST
            and round > self.quiet_rounds
        )


def multiply_updates(models: Tensor, present: Tensor, start: Tensor) -> Tensor:
    """Return the inner products of k updates and, last, of their plain mean, float64
    [k + 1, k + 1].

    Args:
        models: The uploaded models [n, P].
        present: Mask of the k clients, bool [n].
        start: The model [P] that the updates started from.
    """

    def part(models: Tensor, start: Tensor) -> Tensor:
        updates = models[present].double() - start.double()
        updates = torch.cat([updates, updates.mean(dim=0, keepdim=True)])
        return updates @ updates.T

    return mixing.sum_blocks(part, models, start)


def split_in_two(products: Tensor, linkage: str) -> Tensor:
    """Split clients into two groups by agglomerative clustering of their updates.

    Args:
        products: The inner products of the updates [n, n].
        linkage: The linkage, "single" or "complete".

    Returns:
        bool [n], True for the second group. The first client is in the first group.
    """
    # The import takes a second, and few rounds need it.
    from sklearn.cluster import AgglomerativeClustering

    lengths = products.diagonal().sqrt() + 1e-12
    apart = (1 - products / (lengths[:, None] * lengths)).clamp(min=0).fill_diagonal_(0)
    labels = AgglomerativeClustering(
        n_clusters=2, metric="precomputed", linkage=linkage
    ).fit_predict(apart.numpy())
    return torch.from_numpy(labels != labels[0])


plugin = CFL
