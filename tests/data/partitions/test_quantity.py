"""Clients of different sizes: heterogeneity.md H5."""

import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.data.partitions.quantity import Quantity

LABELS = np.arange(3000) % 6


def sizes(**keys):
    """Return the numbers of training and test samples of each client."""
    draw = Quantity(**{"clients": 10, **keys}).draw(LABELS, 6, 0)
    parts = zip(draw.train, draw.test, strict=True)
    return np.array([len(train) + len(test) for train, test in parts])


def test_the_laws_by_hand():
    """Shares of 3,000 samples for five clients: i + 1 of 15, (i + 1)² of 55, and so on."""
    assert sizes(law="linear", clients=5).tolist() == [200, 400, 600, 800, 1000]
    square = 3000 * np.array([1, 4, 9, 16, 25]) / 55
    assert np.abs(sizes(law="square", clients=5) - square).max() < 1
    power = 3000 * np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12)
    assert np.abs(sizes(law="power", clients=4) - power).max() < 1
    exponential = np.exp(np.arange(4)) / np.exp(np.arange(4)).sum() * 3000
    assert np.abs(sizes(law="exponential", clients=4) - exponential).max() < 1


@pytest.mark.parametrize("law", ["lognormal", "dirichlet", "power", "linear", "square"])
@pytest.mark.parametrize("labels", ["iid", "dirichlet"])
def test_all_samples_are_assigned_and_clients_have_enough(law, labels):
    scheme = Quantity(
        clients=10,
        law=law,
        labels=labels,
        least=5,
    )
    draw = scheme.draw(LABELS, 6, 0)
    assert sorted(np.concatenate([*draw.train, *draw.test])) == list(range(3000))
    held = [
        len(train) + len(test)
        for train, test in zip(draw.train, draw.test, strict=True)
    ]
    assert min(held) >= 5


def test_without_spread_sizes_are_those_of_iid_clients():
    assert set(sizes(sigma=0.0, clients=7)) == {428, 429}
    assert np.ptp(sizes(law="power", a=0.0, clients=7)) <= 1
    assert np.ptp(sizes(law="dirichlet", beta=1e9)) <= 3


def test_log_sizes_have_the_spread_and_a_client_keeps_its_draw():
    generator = np.random.default_rng(0)
    many, one_more = (
        np.log(Quantity(clients=clients, sigma=0.3).draw_weights(generator))
        for clients in (10_000, 10_001)
    )
    assert abs(many.std() / 0.3 - 1) < 0.03
    assert np.array_equal(one_more[:-1], many)


def test_classes_of_a_client_follow_its_own_proportions():
    for beta, least, most in ((0.05, 0.6, 1), (1e6, 0, 0.3)):
        scheme = Quantity(clients=10, labels="dirichlet", label_beta=beta)
        train = scheme.draw(LABELS, 6, 0).train
        shares = [np.bincount(LABELS[held]).max() / len(held) for held in train]
        assert least < np.mean(shares) < most


def test_proportions_may_be_the_smallest_numbers():
    """A proportion below 2e-308, times a draw, can round to the proportion itself."""
    labels = np.arange(1000) % 10
    keys = {"clients": 10, "seed": 0, "law": "dirichlet"}
    scheme = Quantity(**keys, labels="dirichlet", label_beta=0.001)
    draw = scheme.draw(labels, 10, 0)
    assert sorted(np.concatenate([*draw.train, *draw.test])) == list(range(1000))


def test_sizes_do_not_depend_on_the_classes():
    assert np.array_equal(sizes(labels="iid"), sizes(labels="dirichlet"))


def test_a_client_with_too_few_is_an_error():
    with expect_refusal(r"'exponential': .* partition.least = 10;"):
        sizes(law="exponential", clients=20)
