"""How many floats travel down to and up from a client in a round, counted in a small
experiment.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from hpcfl import trial
from hpcfl.communication import exchange
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.preparation.prepare import prepare
from hpcfl.rounds import record

CLIENTS = 20
EXPERIMENT = {
    "data": {"dataset": "digits"},
    "partition": {"scheme": "iid", "clients": CLIENTS},
    "rounds": 2,
    "model": {"name": "mlp", "hidden": [64]},
    "training": {"batch_size": 1000},
}

# Zhang et al., "FedALA", AAAI 2023, Table 3: parameters down and up for one client in
# one iteration, in models Σ. α is the share of the feature extractor, M the number of
# models that a client receives: all but its own.
FEDALA_TABLE_3: dict[str, tuple[str, Callable[[float, int], float]]] = {
    **dict.fromkeys(
        (
            "fedavg",
            "fedprox",
            "fedavg-c",
            "fedprox-c",
            "per-fedavg",
            "pfedme",
            "ditto",
            "fedamp",
            "fedphp",
            "partialfed",
            "fedala",
        ),
        ("2 Σ", lambda alpha, m: 2.0),
    ),
    "fedrep": ("2 α Σ", lambda alpha, m: 2 * alpha),
    **dict.fromkeys(("fedfomo", "apple"), ("(1 + M) Σ", lambda alpha, m: 1.0 + m)),
}


@dataclass(frozen=True)
class Traffic:
    """Floats that travel for one client in a round, in models Σ of the small
    experiment.
    """

    down: float
    up: float
    paper: (
        tuple[str, float] | None
    )  # the sum by FedALA's Table 3, if it has the method: formula and value


def of(method: str) -> Traffic:
    """Count the floats of a method's second round, the first that builds on clients'
    messages.

    Raises UserError where a user's own method cannot be run in that experiment.
    """
    communicator, cpu = OneProcess(), torch.device("cpu")
    experiment = config.parse({**EXPERIMENT, "method": {"name": method}})
    prepared = trial.run(prepare(experiment, communicator), communicator)
    everyone, server, layout = (
        np.arange(CLIENTS),
        prepared.server,
        prepared.setup.layout,
    )
    for round in (1, 2):
        message = prepared.method.send(server, prepared.audience(everyone, round))
        inbox, down = exchange.send(
            communicator, prepared.placement, everyone, message, cpu
        )
        fleet = prepared.fleet(everyone, round, scored=False)
        message = prepared.method.update(fleet, inbox)
        up = (
            record.numbers(fleet, message, record.finite(fleet, message))
            .values["floats_up"]
            .mean()
        )
        prepared.store.put(everyone.tolist(), fleet.state)
        uplink = exchange.gather(
            communicator,
            prepared.placement,
            everyone,
            message,
            [exchange.header(message)],
        )
        prepared.method.aggregate(
            server, prepared.cohort(everyone, round), uplink or {}
        )
    body = layout.columns("body")
    formula, value = FEDALA_TABLE_3.get(method, (None, None))
    paper = (
        None
        if formula is None or value is None
        else (formula, value((body.stop - body.start) / layout.width, CLIENTS - 1))
    )
    return Traffic(down / layout.width, float(up) / layout.width, paper)
