"""What holds for every method: methods-1.md §16, and the column that counts: §2.1."""

import numpy as np
import pytest
import tiny
import torch
from every_method import NAMES, kind, short

from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.message import Mean
from hpcfl.experiment import config
from hpcfl.methods.fedavg import ServerModel
from hpcfl.simulation.prepare import prepare

pytestmark = pytest.mark.slow

BODIES = ["fedper", "fedrep", "fedrod", "fedbabu"]
HEADS = ["lg-fedavg"]
ROWS = ["diversifed", "fedamp", "cfl", "fedcac"]
SENDING_MORE = [
    "local",
    "cwfedavg",
    "fednh",
    "pfedme",
    "ifca",
    "creff",
    "scaffold",
    "fedbn",
]


def averages(name):
    """Whether the server averages whole models, and does nothing else."""
    method = kind(name)
    return issubclass(method, ServerModel) and all(
        getattr(method, hook) is getattr(ServerModel, hook)
        for hook in ("upload", "update", "aggregate")
    )


MIXING = sorted({*BODIES, *HEADS, *ROWS, *SENDING_MORE, *filter(averages, NAMES)})
# Noise, validation samples, or which samples share a step, are keyed by the client's
# number; APPLE's state names clients, and pFedHN draws an embedding for each.
NUMBERED = {"per-fedavg", "partialfed", "fedfomo", "apple", "pfedhn", "fedcp"}
# Of clients that are as far from one, it chooses by their numbers.
TIED = {"diversifed"}
COUNTS = [[4, 2, 0, 1], [0, 4, 1, 1], [1, 0, 3, 3], [1, 0, 2, 5]]


def uploads(name, setup, server, rows):
    """What clients whose models are ``rows`` [n, P] send up."""
    columns, clients = setup.layout.columns, len(rows)
    samples = setup.counts.sum(dim=1)
    if name == "fednh":
        prototypes = (
            server["model"][columns("head.weight")]
            .view(setup.classes, -1)
            .repeat(clients, 1, 1)
        )
        return {
            "body": Mean(rows[:, columns("body")], samples),
            "scale": Mean(rows[:, columns("head.scale")], samples),
            "prototypes": Mean(prototypes.double(), setup.counts),
        }
    if name in BODIES:
        # a hypernetwork is shared too
        return {
            "body": Mean(
                rows if name == "fedrod" else rows[:, columns("body")], samples
            )
        }
    if name in HEADS:
        return {"head": Mean(rows[:, columns("head")], samples)}
    if name == "ifca":
        return {
            "models": Mean(rows, torch.stack([samples, 0 * samples], dim=1)),
            "cluster": torch.zeros(clients, 1, dtype=torch.int64),
        }
    if name in ROWS:
        masks = (torch.arange(rows.shape[1]) + torch.arange(clients)[:, None]) % 3 == 0
        return {"model": rows, "mask": masks}
    extra = {
        "cwfedavg": {"classwise": rows},
        "creff": {
            "gradients": Mean(
                torch.zeros(clients, setup.classes, len(server.get("head", ""))),
                setup.counts,
            )
        },
        "scaffold": {"control": Mean(torch.zeros_like(rows), samples)},
    }
    return {"model": Mean(rows, samples), **extra.get(name, {})}


def received(algorithm, message):
    """The models that come down, ``[…, P]``, or of methods that share a body the
    bodies, a head the heads.
    """
    message = {
        field: getattr(value, "tensor", value) for field, value in message.items()
    }
    if "classwise" in message:
        return algorithm.received(None, message)
    if message.keys() == {"head"}:
        return message["head"]
    [found] = [
        message[field]
        for field in ("model", "body", "anchor", "models")
        if field in message
    ]
    return found.rows[:1] if hasattr(found, "rows") else found


@pytest.mark.parametrize("name", MIXING)
def test_16_1_identical_models_are_a_fixed_point_of_the_mixing(arrived, name):
    """Also rows of A sum to one: models that are all the same vector c stay c whatever
    its size.
    """
    prepared = prepare(config.parse(tiny.table(short(name))), OneProcess())
    setup, algorithm = prepared.setup, prepared.method
    everyone = prepared.cohort(np.arange(setup.clients), 2)
    server = algorithm.server_state(setup)
    for model in (setup.initial(), setup.initial() + 1000):
        uplink = uploads(name, setup, server, model.repeat(setup.clients, 1))
        algorithm.aggregate(server, everyone, arrived(uplink))
        message = algorithm.send(server, everyone)
        if name == "local":
            assert message == {} and server == {}
            continue
        if name == "fednh":  # prototypes are unit rows, so they do not move by 1000
            model = model.clone()
            model[setup.layout.columns("head.weight")] = setup.initial()[
                setup.layout.columns("head.weight")
            ]
        found = received(algorithm, message)
        width = found.shape[-1]
        expected = model[-width:] if name in HEADS else model[:width]
        expected = expected.expand(found.shape)
        torch.testing.assert_close(found, expected, rtol=2e-7, atol=1e-6)


CASES = {
    "one class, identical, an absent class, fewer samples than a batch, a head row of zeros": (
        [[8, 0, 0, 0], [8, 0, 0, 0], [0, 0, 0, 1], [2, 1, 0, 0], [20, 4, 0, 6]],
        {
            "training": {"batch_size": 100},
            "model": {"name": "tiny:zero_row", "hidden": 6},
        },
    ),
    "one participant": (COUNTS, {"participation": {"fraction": 0.25}}),
    "one client": ([[4, 4, 4, 4]], {}),
}
FEW = list(CASES)[1:]


def has_no_nan(played):
    for tensor in (*played.server.values(), *played.clients.values()):
        assert tensor.double().isfinite().all()
    assert np.isfinite(played.values["pre/weighted"]).all()
    assert np.isfinite(
        played.values["post/weighted"][:-1]
    ).all()  # nothing trains after the last round
    assert not np.nansum(played.values["clients/diverged"])


@pytest.mark.parametrize("name", NAMES)
def test_16_3_renumbering_clients_permutes_results_only_and_16_4_no_nan(federate, name):
    """With one full batch an epoch; batches are shuffled by the client's number, which
    changes the order of sums.
    """
    (counts, sections), *_ = CASES.values()
    first = federate(short(name), counts, rounds=2, **sections)
    has_no_nan(first)
    if name in NUMBERED:
        return
    order = [2, 0, 4, 1, 3]
    if name in TIED:
        counts, order = COUNTS, [2, 0, 3, 1]
        first = federate(short(name), counts, rounds=2, **sections)
    renumbered = [counts[client] for client in order]
    other = federate(short(name), renumbered, rounds=2, **sections)
    # what it computes of a client has the same bits beside any others
    assert not first.prepared.resources.kernel.dependent
    for column in ("clients/pre/loss", "clients/post/loss"):
        np.testing.assert_allclose(
            other.values[column], first.values[column][:, order], rtol=1e-4
        )
    for key, tensor in first.clients.items():
        torch.testing.assert_close(
            other.clients[key], tensor[order], rtol=1e-4, atol=1e-5
        )
    if "model" in first.server:
        torch.testing.assert_close(
            other.server["model"], first.server["model"], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", FEW)
def test_16_4_no_nan(federate, name, case):
    counts, sections = CASES[case]
    has_no_nan(federate(short(name), counts, rounds=2, **sections))


@pytest.mark.parametrize("layers", ["all", "output", 2])
@pytest.mark.parametrize("case", CASES)
def test_16_4_no_nan_with_true_class_distributions(federate, case, layers):
    counts, sections = CASES[case]
    played = federate(
        {
            "name": "cwfedavg",
            "distribution": "true",
            "layers": layers,
        },
        counts,
        **sections,
    )
    assert all(tensor.isfinite().all() for tensor in played.server.values())


BEFORE = {
    "fedgh",
    "knn-per",
    "fedem",
    "pfedhn",
    "lg-fedavg",
    "fedavg",
    "fedprox",
    "fedavg-c",
    "fedprox-c",
    "fedala",
    "cwfedavg",
    "cfl",
    "ifca",
    "feduv",
    "creff",
    "per-fedavg",
    "fedrep",
    "fedper",
    "scaffold",
    "moon",
    "fedbn",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fedavgm",
    "fedcp",
    "feddbe",
    "feddyn",
    "fedlc",
    "fednova",
    "gpfl",
    "q-ffl",
}
AFTER = {
    "fedas",
    "fml",
    "fedtgp",
    "mr-mtl",
    "pfedsim",
    "local",
    "fedamp",
    "fedfomo",
    "apple",
    "fedproto",
    "fednh",
    "diversifed",
    "pfedme",
    "ditto",
    "fedphp",
    "partialfed",
    "fedrod",
    "fedcac",
    "apfl",
}


def test_a_method_counts_the_score_before_or_after_local_training_as_its_paper():
    expected = {
        **dict.fromkeys(BEFORE, "pre"),
        **dict.fromkeys(AFTER, "post"),
        "fedbabu": "tuned",
    }
    assert {name: kind(name).primary for name in expected} == expected


@pytest.mark.parametrize(
    "name", ["per-fedavg", "pfedme", "ditto", "partialfed", "fedrod"]
)
def test_plain_steps_have_their_own_learning_rate_under_adam(federate, name):
    """A rate that suits Adam is none for them: with ``plain_lr`` they go another way,
    and without it they have ``lr``.
    """
    own = {"partialfed": {"warmup": 0}, "fedrod": {"order": "separate"}}.get(name, {})
    adam = {"optimizer": "adam", "lr": 0.001}
    digests = [
        federate({"name": name, **own}, rounds=1, training={**adam, **keys}).digest
        for keys in ({}, {"plain_lr": 0.001}, {"plain_lr": 0.005})
    ]
    assert digests[0] == digests[1] != digests[2]
