"""FedAvg under other names, for the sham check of ``sham.toml``."""

from hpcfl.methods.fedavg import FedAvg


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
