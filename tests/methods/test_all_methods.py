"""What holds for every method: methods-1.md §16."""

import numpy as np
import pytest
import torch

MIXING = ["local", "fedavg", "fedprox", "fedavg-c", "fedprox-c", "cwfedavg", "fedala", "diversifed", "fednh",
          "per-fedavg", "pfedme", "ditto", "fedphp", "partialfed", "fedbabu", "fedamp", "feduv", "cfl"]
METHODS = [*MIXING, "fedper", "fedrep", "fedrod", "fedcac", "creff", "fedfomo", "apple", "ifca", "fedproto"]
SHORT = {"fedavg-c": {"tune_epochs": 1}, "fedprox-c": {"tune_epochs": 1}, "fedala": {"most_epochs": 12, "share": 1.0},
         "cwfedavg": {"layers": "all", "wdr": 1.0}, "fednh": {"rho": 0.5},
         "per-fedavg": {"variant": "hessian-free"}, "pfedme": {"lam": 5.0}, "partialfed": {"warmup": 1},
         "fedrod": {"personal": "hyper"}, "cfl": {"quiet_rounds": 0, "eps1": 10.0, "eps2": 0.0},
         "creff": {"features_each": 5, "match_steps": 3, "head_epochs": 3}}
# Noise, validation samples, or which samples share a step, are keyed by the client's number; APPLE's state names clients.
NUMBERED = {"per-fedavg", "partialfed", "fedfomo", "apple"}
COUNTS = [[8, 3, 0, 1], [0, 9, 2, 2], [1, 0, 6, 6], [3, 0, 5, 10]]

every_method = pytest.mark.parametrize("name", METHODS)


def method(name, **keys):
    return {"name": name, **SHORT.get(name, {}), **keys}


@pytest.mark.parametrize("name", MIXING)
def test_identical_models_are_a_fixed_point_of_the_mixing(federate, name):
    """Also rows of A sum to one: models that are all the same vector c stay c whatever its size."""
    played = federate(method(name), rounds=1)
    setup, algorithm = played.prepared.setup, played.prepared.method
    everyone = played.prepared.cohort(np.arange(setup.clients), 2)
    server = algorithm.server_state(setup)
    for model in (setup.initial(), setup.initial() + 1000):
        rows = model.repeat(setup.clients, 1)
        if name == "fednh":
            body, scale = (rows[:, setup.layout.columns(part)] for part in ("body", "head.scale"))
            prototypes = server["model"][setup.layout.columns("head.weight")].repeat(setup.clients, 1)
            uplink = {"body": body, "scale": scale, "prototypes": prototypes}
            model = torch.cat([model[:body.shape[1]], setup.initial()[body.shape[1]:]])
            model[setup.layout.columns("head.scale")] = scale[0]
        elif name == "fedbabu":
            body = setup.layout.columns("body").stop
            uplink = {"body": rows[:, :body]}
            model = torch.cat([model[:body], setup.initial()[body:]])
        else:
            uplink = {"model": rows}
        algorithm.aggregate(server, everyone, uplink)
        message = {field: getattr(value, "tensor", value) for field, value in algorithm.send(server, everyone).items()}
        if name == "local":
            assert message == {} and server == {}
        elif name in ("diversifed", "fedamp"):
            assert torch.equal(message["anchor"], rows)
        else:
            received = algorithm.received(None, message) if hasattr(algorithm, "received") else message["model"]
            torch.testing.assert_close(received.expand(setup.clients, -1), model.expand(setup.clients, -1), rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in NUMBERED])
def test_renumbering_clients_permutes_results_only(federate, name):
    """With one full batch an epoch; batches are shuffled by the client's number, which changes the order of sums."""
    order = [2, 0, 3, 1]
    whole = {"training": {"batch_size": 100}}
    first = federate(method(name), COUNTS, **whole)
    other = federate(method(name), [COUNTS[client] for client in order], **whole)
    for column in ("clients/pre/loss", "clients/post/loss"):
        np.testing.assert_allclose(other.values[column], first.values[column][:, order], rtol=1e-4)
    for key, tensor in first.clients.items():
        torch.testing.assert_close(other.clients[key], tensor[order], rtol=1e-4, atol=1e-5)
    if "model" in first.server:
        torch.testing.assert_close(other.server["model"], first.server["model"], rtol=1e-4, atol=1e-5)


CASES = {"a class absent everywhere": ([[8, 3, 0, 2], [0, 9, 0, 6], [1, 4, 0, 0]], {}),
         "one-class clients": ([[8, 0, 0, 0], [0, 9, 0, 0], [0, 0, 0, 1]], {}),
         "fewer samples than a batch": ([[2, 1, 0, 0], [0, 1, 0, 0], [20, 0, 6, 6]], {"training": {"batch_size": 10}}),
         "identical clients": ([[5, 0, 3, 0], [5, 0, 3, 0]], {"training": {"batch_size": 100}}),
         "one participant": (COUNTS, {"participation": {"fraction": 0.25}}),
         "a head row of zeros": (COUNTS, {"model": {"name": "tiny:zero_row", "hidden": 6}}),
         "one client": ([[4, 4, 4, 4]], {})}


@every_method
@pytest.mark.parametrize("case", CASES)
def test_no_nan(federate, name, case):
    counts, sections = CASES[case]
    if name == "apple" and "participation" in sections:
        pytest.skip("needs all clients in every round")
    played = federate(method(name), counts, **sections)
    for tensor in (*played.server.values(), *played.clients.values()):
        assert tensor.double().isfinite().all()
    assert np.isfinite(played.values["pre/weighted"]).all()
    assert np.isfinite(played.values["post/weighted"][:-1]).all()  # nothing trains after the last round
    assert not np.nansum(played.values["clients/diverged"])


@pytest.mark.parametrize("layers", ["all", "output", 2])
@pytest.mark.parametrize("case", CASES)
def test_no_nan_with_true_class_distributions(federate, case, layers):
    counts, sections = CASES[case]
    played = federate({"name": "cwfedavg", "distribution": "true", "layers": layers}, counts, **sections)
    assert all(tensor.isfinite().all() for tensor in played.server.values())


@every_method
def test_lanes_do_not_change_a_bit(federate, name):
    digests = {federate(method(name), rounds=2, runtime={"lanes": lanes}).digest for lanes in (2, 7, "auto")}
    assert len(digests) == 1
