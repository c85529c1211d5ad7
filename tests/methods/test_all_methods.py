"""Properties of every built-in method."""

import re

import numpy as np
import pytest
import tiny
import torch
from every_method import NAMES, kind, short
from playing import play

from hpcfl.methods.fedavg import FedAvg
from hpcfl.rows import randomness

pytestmark = pytest.mark.slow

COUNTS = [[4, 2, 0, 1], [0, 4, 1, 1], [1, 0, 3, 3], [1, 0, 2, 5]]
CASES = {
    "one class, identical, an absent class, fewer samples than a batch, a head of zeros": (
        [[8, 0, 0, 0], [8, 0, 0, 0], [0, 0, 0, 1], [2, 1, 0, 0], [20, 4, 0, 6]],
        {"training": {"batch_size": 100}, "model": {"name": "tiny:zero_head"}},
    ),
    "one client, frozen layers": ([[4, 4, 4, 4]], {"model": {"name": "tiny:lora"}}),
}
# Floats down and up in round 2, of an MLP with 36 parameters in its body, 28 in its head
# and 6 features; each client has three of four classes.
TRAFFIC_BY_HAND = {
    "apple": (3 * 64, 64),
    "creff": (64 + 28, 64 + 3 * 28),
    "fedcac": (64, 64 + 64 / 32),
    "fedcp": (64 + 108, 64 + 108),
    "feddbe": (64 + 6, 64),
    "fedfomo": (3 * 64, 64 + 4),
    "fedgh": (28, 3 * (6 + 1)),
    "fednh": (36 + 1 + 24, 36 + 1 + 3 * (6 + 1)),
    "fedpac": (64 + 4 * 6, 64 + 1 + 3 * 2 * 6),
    "fedproto": (4 * 6 + 4 / 32, 3 * 6 + 4 / 32),
    "fedrod": (64 + 5 * 6 + 6 * 24 + 24, 64 + 5 * 6 + 6 * 24 + 24),
    "fedtgp": (4 * 6 + 4 / 32, 3 * 6 + 4 / 32),
    "gpfl": (36 + 24 + 108, 36 + 24 + 108),
}
TRAFFIC = re.compile(r"Down ([\w·]+)(?: \(.+?\))?, up ([\w·]+(?: \+ \d)?)[ .,]")


def traffic(name):
    """Return the floats down and up that a method's docstring states, if they are plain
    expressions.
    """
    documents = (base.__doc__ or "" for base in kind(name).__mro__)
    traffic = next(document for document in documents if "Down" in document)
    return TRAFFIC.search(" ".join(traffic.split()))


def rates(name):
    """Return local rates so small that no parameter changes."""
    return {
        key: 1e-30
        for key in kind(name).model_fields
        if key.endswith("_lr") and not key.startswith(("server", "hyper"))
    }


@pytest.fixture(scope="module", params=NAMES)
def still(request, tmp_path_factory):
    """Return a method's name and its run without any change by training."""
    name, training = request.param, {"lr": 1e-30, "batch_size": 100}
    method = short(name, **rates(name))
    folder = tmp_path_factory.mktemp("still")
    return name, play(folder, method, COUNTS, rounds=2, training=training)


def test_identical_models_do_not_change(still):
    """Every client sends and receives the same model. A server may change the heads by
    its information about classes.
    """
    name, played = still
    setup, hooks = played.prepared.setup, played.prepared.hooks
    whole = issubclass(kind(name), FedAvg)
    width = setup.layout.columns("all" if whole else "body").stop
    for hook, state in (("server", played.server), ("client", played.clients)):
        begun = hooks.make_initial_state(f"{hook}_state", setup)
        for key in {"model", "models", "personal", "inherited"} & begun.keys():
            found, expected = state[key][..., :width], begun[key][..., :width]
            torch.testing.assert_close(
                found, expected.expand(found.shape), rtol=2e-7, atol=1e-6
            )


def has_no_nan(played):
    for tensor in (*played.server.values(), *played.clients.values()):
        assert tensor.double().isfinite().all()
    assert np.isfinite(played.values["pre/weighted"]).all()
    # no training after the last round
    assert np.isfinite(played.values["post/weighted"][:-1]).all()
    assert not np.nansum(played.values["clients/diverged"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_numbers_stay_finite(federate, name, case):
    counts, sections = CASES[case]
    has_no_nan(federate(short(name), counts, rounds=2, **sections))


@pytest.fixture
def common_draws(monkeypatch):
    """Let all clients draw the same numbers in all rounds."""
    generator = randomness.generator

    def draw(seed, *key):
        return generator(seed, *(part for part in key if isinstance(part, str)))

    monkeypatch.setattr(randomness, "generator", draw)


@pytest.mark.parametrize("name", NAMES)
def test_renumbering_clients_permutes_the_results(federate, common_draws, name):
    counts, order, whole = tiny.COUNTS, [2, 0, 4, 1, 3], {"batch_size": 100}
    first = federate(short(name), counts, rounds=2, training=whole)
    prepared = first.prepared
    begun = prepared.hooks.make_initial_state("server_state", prepared.setup)
    for tensor in begun.values():
        if (
            len(tensor) == len(order) != tensor.shape[-1]
            and (tensor != tensor[0]).any()
        ):
            pytest.skip("clients begin with numbers of their own on the server")
    renumbered = [counts[client] for client in order]
    other = federate(short(name), renumbered, rounds=2, training=whole)
    # a client's results have the same bits in any batch of clients
    assert not prepared.resources.kernel.dependent
    for column in ("clients/pre/loss", "clients/post/loss"):
        expected = first.values[column][:, order]
        np.testing.assert_allclose(other.values[column], expected, rtol=1e-4)
    for key, found in other.clients.items():
        expected = first.clients[key][order]
        if expected.shape == (len(order), len(order)):
            expected = expected[:, order]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    if "model" in first.server:
        torch.testing.assert_close(
            other.server["model"], first.server["model"], rtol=1e-4, atol=1e-5
        )


def test_the_docstring_states_the_number_of_floats_sent(still):
    """The numbers above replace a docstring without a plain expression."""
    name, played = still
    method, expressions = played.prepared.method, traffic(name)
    known = {
        "P": 64,  # 5·6 + 6 in the body and 6·4 + 4 in the head
        "P_b": 36,
        "P_g": 28,
        "L": getattr(method, "components", 0),
        "k": getattr(method, "clusters", 0),
    }
    expected = TRAFFIC_BY_HAND.get(name, (64, 64))
    if expressions is not None:
        text = [expression.replace("·", "*") for expression in expressions.groups()]
        expected = [
            eval(re.sub(r"(\d)P", r"\1*P", expression), known) for expression in text
        ]
    assert (played.floats[1] == [expected[0], *[expected[1]] * 4]).all()


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "optimizer" in kind(name).unheeded]
)
def test_plain_steps_have_their_own_learning_rate_under_adam(federate, name):
    """A rate for Adam does not suit plain steps: with ``plain_lr`` they differ from the
    steps without it, which use ``lr``.
    """
    own = {"warmup": 0} if "warmup" in kind(name).model_fields else {}
    adam = {"optimizer": "adam", "lr": 0.001}
    digests = [
        federate({"name": name, **own}, rounds=1, training={**adam, **keys}).digest
        for keys in ({}, {"plain_lr": 0.001}, {"plain_lr": 0.005})
    ]
    assert digests[0] == digests[1] != digests[2]
