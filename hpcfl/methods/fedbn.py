"""FedBN: the server averages all layers except batch norm, which each client keeps.

Li et al., "FedBN: Federated learning on non-IID features via local batch
normalization", ICLR 2021. The scale, shift and statistics of a client's batch norm are
never sent. The result is ``pre``, before local training: the averaged layers with the
client's own batch norm. For a model without batch norm this is FedAvg.

The paper averages uniformly. Here clients are weighted by samples, as in FedAvg, so
that a comparison isolates the method (methods-2.md §12). ``weights = "uniform"`` gives
the paper's mean.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from hpcfl.methods._shared_part import PrivatePart
from hpcfl.methods.base import Layout, Setup


class FedBN(PrivatePart):
    """State and traffic of FedBN; P_n parameters are batch norm's.

    Server: ``model`` [P], with the initial batch norm. Client: ``norm`` [P_n]. Down P −
    P_n, up P − P_n. ``global`` scores the averaged layers with the initial scale and
    shift.
    """

    reference = "Li et al., ICLR 2021"
    trains = {}  # a model may freeze any layer
    kept = "norm"
    blended_layers = 1

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

    def cut_shared_part(self, layout: Layout, rows: Tensor) -> Tensor:
        averaged = [rows[..., columns] for columns in find_averaged(layout)]
        return torch.cat([rows[..., :0], *averaged], dim=-1)

    def cut_private_part(self, layout: Layout, rows: Tensor) -> Tensor:
        return rows.index_select(-1, layout.batch_norm.to(rows.device))

    def join_parts(self, layout: Layout, shared: Tensor, private: Tensor) -> Tensor:
        rows = shared.new_empty(*shared.shape[:-1], layout.width)
        rows.index_copy_(-1, layout.batch_norm.to(rows.device), private)
        start = 0
        for columns in find_averaged(layout):
            stop = start + columns.stop - columns.start
            rows[..., columns] = shared[..., start:stop]
            start = stop
        return rows


def find_averaged(layout: Layout) -> Iterator[slice]:
    """Yield the columns of each parameter that is not batch norm's."""
    private = set(layout.batch_norm.tolist())
    for columns in layout.places.values():
        if columns.start not in private:
            yield columns


plugin = FedBN
