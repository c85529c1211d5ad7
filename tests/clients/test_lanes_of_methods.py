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
# shape of the samples, and the batch size
MODELS = {
    "mlp": ((1, 6, 6), 5),
    "cnn": ((1, 16, 16), 5),
    "lenet": ((1, 28, 28), 5),
    "conv2cifar": ((3, 16, 16), 5),
    "tiny:residual": ((3, 32, 32), 5),
    "fasttext": ((7,), 5),
    "spiral": ((2,), 5),
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


def unequal_clients(folder, name, lanes, dtype, **training):
    """Return a fleet of unequal clients, one without samples, for a built-in model on
    random samples, and its start row.
    """
    shape, batch = MODELS[name]
    generator = np.random.default_rng(0)
    tokens = name == "fasttext"
    x = (
        generator.integers(0, 9, (60, *shape))
        if tokens
        else generator.standard_normal((60, *shape))
    )
    np.savez(
        folder / "data.npz", x=x if tokens else x.astype(dtype), y=np.arange(60) % 3
    )
    table = {
        "data": {"dataset": "npz", "file": str(folder / "data.npz")},
        "model": {"name": name},
        "method": {"name": "fedavg"},
        "partition": {"scheme": "iid", "clients": 8},
        "training": {"batch_size": batch, **training},
        "runtime": {"lanes": lanes},
    }
    prepared = prepare_alone(table)
    pools = prepared.resources.samples.train
    for client, length in enumerate((3, 0, 5, 3, 4, 5, 1, 5)):
        pools[client] = pools[client][:length]
    if dtype is np.float64:
        prepared.resources.kernel.module.double()
    fleet = prepared.make_fleet(np.arange(8), 1, False)
    rows = prepared.setup.initial().to(
        torch.float64 if dtype is np.float64 else torch.float32
    )
    fleet.state = {key: value.to(rows.dtype) for key, value in fleet.state.items()}
    return fleet, rows


def trained(folder, name, lanes, dtype, epochs, **training):
    """Return rows and state of the clients after local training."""
    fleet, rows = unequal_clients(folder, name, lanes, dtype, **training)
    return {"rows": fleet.train(rows, epochs=epochs), **fleet.state}


@pytest.mark.parametrize("name", MODELS)
def test_models_in_double_precision(tmp_path, double, name):
    how = {
        "epochs": 2,
        "momentum": 0.9,
        "clip": 1.0,
    }
    serial = trained(tmp_path, name, 1, np.float64, **how)
    assert apart(trained(tmp_path, name, LANES, np.float64, **how), serial) < 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_models_after_an_epoch_in_single_precision(tmp_path, name):
    serial = trained(tmp_path, name, 1, np.float32, epochs=1, lr=0.005)
    assert (
        apart(trained(tmp_path, name, LANES, np.float32, epochs=1, lr=0.005), serial)
        < 1e-4
    )


def features(model, x, lane):
    return model.features(x)


def outputs(fleet, rows):
    """Return the outputs of models on their clients' samples; one client has no
    training samples.
    """
    fleet.scoring.is_due = True
    fleet.score("post", rows)
    return {
        "loss": fleet.results.scores["post"]["loss"],
        "means": fleet.class_means(rows, features),
    }


@pytest.mark.parametrize("name", MODELS)
def test_models_give_side_by_side_what_they_give_alone(tmp_path, name):
    fleet, rows = unequal_clients(tmp_path, name, 8, np.float32)
    rows = fleet.train(fleet.train(rows), phase="again")
    serial, _ = unequal_clients(tmp_path, name, 1, np.float32)
    serial.state = fleet.state
    assert apart(outputs(serial, rows), outputs(fleet, rows)) < 1e-4
