"""A method of each family and every model in batched lanes compared with one lane at a
time. Methods have the same bits for any number of lanes (``test_digests.py``), so one
number is sufficient here.
"""

import numpy as np
import pytest
import torch
from every_method import of_each_family, short
from playing import prepare_alone

from hpcfl.simulation import torch_settings

pytestmark = pytest.mark.slow

COUNTS = [[4, 2, 0, 1], [1, 0, 1, 0], [0, 2, 2, 0], [2, 0, 1, 2]]
LANES = 3  # for four clients, and for eight
# shapes of the samples
MODELS = {
    "mlp": (1, 6, 6),
    "cnn": (1, 16, 16),
    "lenet": (1, 28, 28),
    "conv2cifar": (3, 16, 16),
    "tiny:residual": (3, 32, 32),
    "fasttext": (7,),
    "spiral": (2,),
}


@pytest.fixture
def double(monkeypatch):
    """Convert all floats to double precision."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    name = "torch.set_default_dtype"
    in_double = torch_settings.SETTINGS[name]._replace(plain=torch.float64)
    monkeypatch.setitem(torch_settings.SETTINGS, name, in_double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def apart(one, other):
    """Return the largest difference relative to the size of a tensor's values, with its
    name.
    """
    assert one.keys() == other.keys()
    return max(
        (
            (one[name].double() - other[name].double()).abs().max()
            / (1e-12 + other[name].double().abs().max())
        ).item()
        for name in one
        if one[name].numel()
    )


def play(federate, name, lanes):
    played = federate(
        short(name),
        COUNTS,
        rounds=2,
        data={"dataset": "tiny:blobs64"},
        training={"momentum": 0.5, "clip": 1.0},
        runtime={"lanes": lanes},
    )
    return played.state


@pytest.mark.parametrize("name", of_each_family())
def test_methods_in_double_precision(federate, double, name):
    serial = play(federate, name, 1)
    assert all(
        tensor.dtype == torch.float64
        for tensor in serial.values()
        if tensor.is_floating_point()
    )
    assert apart(play(federate, name, LANES), serial) < 1e-6


def unequal_clients(folder, name, lanes, **training):
    """Return a fleet of unequal clients, one without samples, for a built-in model on
    random samples in double precision, and its start row.
    """
    shape = MODELS[name]
    generator = np.random.default_rng(0)
    if name == "fasttext":
        x = generator.integers(0, 9, (60, *shape))
    else:
        x = generator.standard_normal((60, *shape))
    np.savez(folder / "data.npz", x=x, y=np.arange(60) % 3)
    table = {
        "data": {"dataset": "npz", "file": str(folder / "data.npz")},
        "model": {"name": name},
        "method": {"name": "fedavg"},
        "partition": {"scheme": "iid", "clients": 8},
        "training": {"batch_size": 5, **training},
        "runtime": {"lanes": lanes},
    }
    prepared = prepare_alone(table)
    pools = prepared.resources.samples.train
    for client, length in enumerate((3, 0, 5, 3, 4, 5, 1, 5)):
        pools[client] = pools[client][:length]
    prepared.resources.kernel.module.double()
    fleet = prepared.make_fleet(np.arange(8), 1, False)
    rows = prepared.setup.initial().double()
    fleet.state = {key: value.double() for key, value in fleet.state.items()}
    return fleet, rows


def features(model, x, lane):
    return model.features(x)


@pytest.mark.parametrize("name", MODELS)
def test_models_in_double_precision(tmp_path, double, name):
    """Training, scores and class means; one client has no training samples."""
    found = []
    for lanes in (LANES, 1):
        how = {"momentum": 0.9, "clip": 1.0}
        fleet, rows = unequal_clients(tmp_path, name, lanes, **how)
        trained = fleet.train(rows, epochs=2)
        fleet.scoring.is_due = True
        fleet.score("post", trained)
        loss = fleet.results.scores["post"]["loss"]
        means = fleet.class_means(trained, features)
        found.append({"rows": trained, "loss": loss, "means": means, **fleet.state})
    assert apart(*found) < 1e-6
