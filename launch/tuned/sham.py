"""FedAvg under several names, for the sham comparisons of ``sham.toml`` and
``paths.toml``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hpcfl.methods.cwfedavg import CwFedAvg
from hpcfl.methods.fedavg import FedAvg
from hpcfl.methods.overlays.class_wise import ClassWise
from hpcfl.rows.layout import Layout


class Two(FedAvg):
    """FedAvg."""


class Three(FedAvg):
    """FedAvg."""


class Four(FedAvg):
    """FedAvg."""


class Five(FedAvg):
    """FedAvg."""


class Six(FedAvg):
    """FedAvg."""


class Seven(FedAvg):
    """FedAvg."""


class Eight(FedAvg):
    """FedAvg."""


@dataclass(frozen=True)
class EvenClasses(ClassWise):
    """Class-wise aggregation with equal class shares for all clients."""

    def estimate_distributions(
        self, layout: Layout, counts: Tensor, models: Tensor
    ) -> Tensor:
        """Return equal shares, [n, K]."""
        return torch.full(counts.shape, 1 / counts.shape[1]).double()


class OneClass(CwFedAvg):
    """cwFedAvg with class models that all equal the mean of all clients."""

    def make_class_wise(self) -> ClassWise:
        """Return the class-wise aggregation without its regulariser."""
        return EvenClasses("norm", self.layers, 0.0)
