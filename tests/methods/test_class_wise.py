"""Class-wise aggregation: methods-1.md §5. π̂ [M, K] class distributions, p [M] data
shares, Q [K, M], A = Π·Q.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from hpcfl.clients.losses import Batch, Lane
from hpcfl.communication import exchange
from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.exchange import place
from hpcfl.communication.message import Mixture
from hpcfl.experiment.config import parse
from hpcfl.methods.overlays.class_wise import (
    compute_class_weights,
    compute_factors,
    compute_true_distribution,
    estimate_from_norms,
)
from hpcfl.models.mlp import MLP
from hpcfl.rows import mixing

M, K = 7, 4


def draw(clients=M, seed=0):
    """Return random π̂ and p, float64."""
    generator = torch.Generator().manual_seed(seed)
    pi = torch.rand(clients, K, generator=generator, dtype=torch.float64) ** 3 + 1e-4
    p = torch.rand(clients, generator=generator, dtype=torch.float64) + 0.1
    return pi / pi.sum(1, keepdim=True), p / p.sum()


def mixing_matrix(receivers, shares, p):
    """Return A = Π·Q."""
    mixes, shares = compute_factors(receivers, shares, p)
    return mixes @ shares


def loop(pi, receivers, p, models):
    """Return the paper's two steps, for one client and one class at a time, in float64
    (methods-1.md §5, item 5 with its pitfalls).
    """
    clients, classes = len(pi), len(pi[0])
    mass = [sum(p[m] * pi[m][j] for m in range(clients)) for j in range(classes)]
    of_class = {
        j: sum(p[m] * pi[m][j] / mass[j] * models[m] for m in range(clients))
        for j in range(classes)
        if mass[j] > 0
    }
    starts = []
    for own in receivers:
        total = sum(own[j] for j in of_class)
        starts.append(
            sum(own[j] / total * of_class[j] for j in of_class)
            if total > 0
            else sum(p[m] * models[m] for m in range(clients))
        )
    return np.stack(starts)


def method(**keys):
    return parse({"method": {"name": "cwfedavg", **keys}}).method


@pytest.fixture
def setup(make_fleet):
    """Return the setup of clients with MLPs and these counts."""
    known = make_fleet().setup
    return lambda counts: replace(known, class_counts=torch.as_tensor(counts).double())


def server_after(cw, cohort, models, setup, ids=None):
    """Return the server's state after one aggregation of ``models`` [n, P]."""
    upper = setup.layout.columns(cw.make_class_wise().layers)
    overlay = cw.make_class_wise()
    server = {**cw.server_state(setup), **overlay.server_state(setup)}
    who = cohort(setup.counts if ids is None else setup.counts[ids], setup.layout, ids)
    uplink = {
        "model": mixing.average(who.weights, models),
        "classwise": models[:, upper],
    }
    if cw.distribution == "true":
        uplink["distribution"] = compute_true_distribution(who.counts).float()
    cw.aggregate(server, who, overlay.aggregate(server, who, uplink))
    return server


def sent(cw, server, receivers):
    """Return the message to the receivers."""
    return cw.make_class_wise().mix_class_models(
        server, server["distributions"][receivers.ids]
    )


def starts_of(cw, server, receivers):
    """Return the start models of the receivers, [n, P]."""
    return received(cw, sent(cw, server, receivers), len(receivers.ids))


def received(cw, message, clients):
    """Return the models that clients receive by a message, [n, P]."""
    placed, ids = place([1.0] * clients, 1), np.arange(clients)
    inbox, _ = exchange.send(OneProcess(), placed, ids, message, torch.device("cpu"))
    return cw.make_class_wise().receive(None, inbox)["model"]


def test_weights_and_matrix_by_hand():
    # N = (2, 2), π_1 = (1, 0), π_2 = (½, ½): π̄ = (¾, ¼), so Q = [[½/¾, ¼/¾], [0, 1]] =
    # [[⅔, ⅓], [0, 1]]. Client 1 starts from G_1 = ⅔w_1 + ⅓w_2, client 2 from ½G_1 +
    # ½G_2 = ⅓w_1 + ⅔w_2.
    pi, p = torch.tensor([[1, 0], [0.5, 0.5]]).double(), torch.ones(2).double() / 2
    shares = compute_class_weights(pi, p)
    np.testing.assert_allclose(shares, [[2 / 3, 1 / 3], [0, 1]])
    mixes = mixing_matrix(pi, shares, p)
    np.testing.assert_allclose(mixes, [[2 / 3, 1 / 3], [1 / 3, 2 / 3]])


def regulariser(head, pi):
    return (pi - estimate_from_norms(head)).square().sum().sqrt()


@pytest.mark.parametrize(("half", "factor"), [(True, 0.5), (False, 1.0)])
def test_loss_is_cross_entropy_plus_the_regulariser(half, factor):
    model, lane = MLP((5,), K, hidden=(6,)).double(), Lane(distribution=draw()[0][0])
    batch = Batch(torch.randn(9, 5, dtype=torch.float64), torch.randint(K, (9,)))
    cw = method(wdr=10.0, wdr_half=half)
    penalty = regulariser(model.head.weight, lane.distribution)
    expected = cross_entropy(model(batch.x), batch.y) + factor * 10 * penalty
    found = cw.compute_class_wise_loss(model, batch, lane)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("absent", [False, True])
def test_matrix_against_the_paper_client_by_client(absent):
    pi, p = draw()
    if absent:
        pi[:, 1] = 0
        pi /= pi.sum(1, keepdim=True)
    # partial participation: receivers differ from senders
    receivers = draw(5, seed=9)[0]
    # only the holder of absent classes receives the average
    receivers[0] = torch.eye(K)[1]
    models = torch.randn(M, 50, dtype=torch.float64)
    expected = loop(pi.tolist(), receivers.tolist(), p.tolist(), models.numpy())
    found = mixing_matrix(receivers, compute_class_weights(pi, p), p) @ models
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("distribution", ["true", "norm", "wdr"])
@pytest.mark.parametrize("layers", ["all", "output", 1, 2])
def test_sends_the_mix_of_class_wise_layers_and_the_average_of_others(
    cohort, setup, distribution, layers
):
    counts = np.random.default_rng(0).integers(0, 20, (M, K)) + 1
    ids = np.array([0, 2, 3, 6])
    cw = method(distribution=distribution, layers=layers)
    models = torch.randn(len(ids), 64)  # 5·6 + 6 + 6·4 + 4
    setup = setup(counts)
    server = server_after(cw, cohort, models, setup, ids)
    everyone = cohort(setup.counts, setup.layout)
    received = starts_of(cw, server, everyone).double().numpy()

    p = (counts[ids].sum(1) / counts[ids].sum()).tolist()
    head = setup.layout.split(models.double())["head.weight"]
    norms = head.norm(dim=2)
    pi = (
        torch.tensor(counts[ids] / counts[ids].sum(1, keepdims=True))
        if distribution == "true"
        else norms / norms.sum(1, True)
    )
    asked = torch.full((M, K), 1 / K).double()  # a client without an upload
    asked[ids] = pi
    exact = models.double().numpy()
    mixed = loop(pi.tolist(), asked.tolist(), p, exact)
    mean = np.repeat([np.average(exact, axis=0, weights=p)], M, axis=0)
    classwise = setup.layout.columns(layers)
    expected = np.concatenate([mean[:, : classwise.start], mixed[:, classwise]], axis=1)
    np.testing.assert_allclose(received, expected, atol=2e-6)
    assert (layers in ("all", 2)) == (classwise.start == 0)  # of two layers


MANY = 4 * K + 1  # clients whose models give the class models


def many(setup, absent=None):
    """Return counts of the given number of clients, of which none has the class
    ``absent``, and their models [n, 64].
    """
    counts = np.random.default_rng(0).integers(1, 20, (MANY, K))
    if absent is not None:
        counts[:, absent] = 0
    return setup(counts), torch.randn(MANY, 64)


@pytest.mark.parametrize("layers", ["all", "output"])
@pytest.mark.parametrize("absent", [None, 2])
def test_sending_class_models_changes_no_start_model(cohort, setup, layers, absent):
    setup, models = many(setup, absent)
    cw = method(distribution="true", layers=layers)
    everyone = cohort(setup.counts, setup.layout)
    server = server_after(cw, cohort, models, setup)
    message = sent(cw, server, everyone)["classwise"]
    assert isinstance(message, Mixture) and len(message.rows) == K
    classwise = setup.layout.columns(layers)
    weights = server["distributions"], server["shares"], everyone.weights
    expected = mixing.mix(mixing_matrix(*weights), models)
    starts = starts_of(cw, server, everyone)
    assert torch.equal(starts[:, classwise], expected[:, classwise])
    averaged = slice(classwise.start)
    shared = server["model"][averaged].expand(MANY, -1)
    assert torch.equal(starts[:, averaged], shared)
    # a client's start model does not depend on the audience
    for few in ([3], [0, 5, 16]):
        audience = cohort(setup.counts[few], setup.layout, few)
        assert torch.equal(starts_of(cw, server, audience), starts[few])


@pytest.mark.parametrize(
    ("distribution", "extra"), [("true", K), ("norm", 0), ("wdr", 0)]
)
def test_only_true_distributions_are_sent_with_the_model(federate, distribution, extra):
    played = federate({"name": "cwfedavg", "distribution": distribution}, rounds=1)
    width = played.prepared.setup.layout.width
    assert played.values["floats_down"][0] == width
    assert (played.values["clients/floats_up"][0] == width + extra).all()


def test_a_client_without_samples_counts_all_classes_alike():
    assert compute_true_distribution(torch.zeros(1, K)).tolist() == [[1 / K] * K]
