"""Domains divided among separate clients: heterogeneity.md H4."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.data import partition
from hpcfl.data.datasets import Dataset, number_owners
from hpcfl.data.partitions import dirichlet
from hpcfl.data.partitions.by_domain import plugin
from hpcfl.data.partitions.dirichlet import Dirichlet
from hpcfl.data.partitions.iid import Iid

SIZES = {
    "mnist": 100,
    "svhn": 203,
    "usps": 57,
}
# domains in a random order, so that the samples of a domain are not contiguous
DOMAIN = np.random.default_rng(0).permutation(np.repeat([*SIZES], [*SIZES.values()]))
LABELS = torch.arange(360) % 4


def data(domain=DOMAIN, **fields):
    x = torch.zeros(len(domain), 1)
    labels = LABELS[: len(domain)]
    return Dataset("toy", x, labels, 4, owners=number_owners(domain), **fields)


def parts(draw):
    return [held.tolist() for held in (*draw.train, *draw.test)]


@pytest.mark.parametrize("inside", ["iid", "dirichlet"])
@pytest.mark.parametrize("each", [1, 3])
def test_every_client_has_one_domain_and_domains_keep_their_sizes(inside, each):
    scheme = plugin(
        clients=3 * each, clients_per_domain=each, inside=inside, beta=1.0, train=0.5
    )
    split = partition.make(scheme, data(official_test=90))
    dealt = np.concatenate([*split.train, *split.test])
    assert sorted(dealt) == list(range(360))
    held = dict.fromkeys(SIZES, 0)
    for client, name in enumerate(split.names):
        samples = np.concatenate([split.train[client], split.test[client]])
        [domain] = set(DOMAIN[samples].tolist())
        assert name == (domain if each == 1 else f"{domain} {client % each}")
        assert domain == [*SIZES][client // each]
        held[domain] += len(samples)
    assert held == SIZES


@pytest.mark.parametrize("fields", [{}, {"official_test": 90, "merges": False}])
@pytest.mark.parametrize("inner", [Iid, Dirichlet])
def test_one_domain_gives_the_partition_of_the_inner_scheme(inner, fields):
    keys = {
        "clients": 4,
        "seed": 5,
        "train": 0.6,
    }
    one = data(np.full(360, "all"), **fields)
    scheme = plugin(clients_per_domain=4, inside=inner.__name__.lower(), **keys)
    draw = scheme.draw_from(one)
    expected = inner(**keys).draw_from(one)
    assert parts(draw) == parts(expected)
    assert draw.attempts == expected.attempts
    assert parts(draw) != parts(scheme.model_copy(update={"seed": 6}).draw_from(one))


def test_a_domain_may_lack_the_last_classes():
    """When all samples are assigned, one client is at the mean and no client below it."""
    few = replace(data(), y=LABELS % 2)
    split = partition.make(plugin(clients=3, inside="dirichlet"), few)
    sizes = [
        len(one) + len(two) for one, two in zip(split.train, split.test, strict=True)
    ]
    assert sizes == [*SIZES.values()]


def test_impossible_divisions_of_domains_are_refused(monkeypatch):
    with expect_refusal("'by-domain': 'toy' "):
        partition.make(plugin(clients=3), replace(data(), owners=None))
    with expect_refusal(r"partition\.clients = 20: .* = 6$"):
        partition.make(plugin(clients=20, clients_per_domain=2), data())
    with expect_refusal(r"partition\.clients = 3: .* = 2 .*newcomers\.clients = 4"):
        partition.make(plugin(clients=3, clients_per_domain=2), data(), newcomers=4)
    with expect_refusal(r"clients_per_domain = 60"):
        partition.make(plugin(clients=180, clients_per_domain=60), data())
    scheme = plugin(
        clients=60,
        clients_per_domain=20,
        inside="dirichlet",
        beta=1e-9,
    )
    monkeypatch.setattr(dirichlet, "CAP", 3)
    with expect_refusal(r"partition\.beta = 1e-09: .* 3 .* 20 .*'mnist'"):
        partition.make(scheme, data())
