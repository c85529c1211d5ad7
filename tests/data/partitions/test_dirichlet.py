"""Classes divided among clients in Dirichlet proportions: protocols.md D2 and D3."""

import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.data.partitions import dirichlet
from hpcfl.data.partitions.dirichlet import Dirichlet, DirichletMin, swap
from hpcfl.rows import randomness

LABELS = np.repeat(np.arange(100), 600)  # CIFAR-100, merged


@pytest.fixture
def generator():
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("beta", "reported"), [(0.01, 12), (0.1, 46), (0.5, 85), (1.0, 94)]
)
def test_classes_per_client_are_those_of_cwfedavg_table_3(beta, reported):
    held = []
    for seed in range(10):
        assignment = Dirichlet(beta=beta).assign(
            LABELS, 100, randomness.generator(seed, "partition")
        )
        held += [len(np.unique(LABELS[samples])) for samples in assignment.samples]
    assert abs(np.mean(held) - reported) <= 2


def test_a_client_at_the_mean_gets_no_more(generator):
    shares = dirichlet.draw_shares(np.array([True, False, True]), 0.1, generator)
    assert shares[1] == 0 and shares.sum() == pytest.approx(1)


def test_the_last_client_gets_the_rest_of_rounding(monkeypatch, generator):
    """Also if its share is 0: cuts are the floors of cumulated shares, here 2.5, 5 and
    9.99… of ten samples.
    """
    shares = np.array([0.25, 0.25, 0.4999999, 0.0])
    monkeypatch.setattr(dirichlet, "draw_shares", lambda *given: shares)
    drawn = dirichlet.spread([np.arange(10)], 4, 0.1, generator)
    assert [*map(len, drawn.list_samples())] == drawn.sizes.tolist() == [2, 3, 4, 1]
    assert sorted(np.concatenate(drawn.list_samples())) == list(range(10))


def test_shares_that_underflow_are_drawn_again(generator):
    open_clients = np.arange(20) == 7
    shares = dirichlet.draw_shares(open_clients, 1e-4, generator)
    assert shares.tolist() == open_clients.tolist()


def test_small_draws_are_redrawn_and_counted(generator):
    drawn = Dirichlet(clients=20).assign(np.arange(100) % 10, 10, generator)
    assert drawn.attempts > 1


def test_giving_up_reports_the_numbers(monkeypatch, generator):
    monkeypatch.setattr(dirichlet, "CAP", 20)
    with expect_refusal(r"partition\.beta = 0\.1: .* 20 .* 90 .* 100 "):
        Dirichlet(clients=90).assign(np.arange(100) % 10, 10, generator)
    with expect_refusal(r"partition\.beta = 0\.1 "):
        dirichlet.draw_shares(np.array([False, False]), 0.1, generator)


def test_an_improbable_draw_is_refused_after_100_attempts(generator):
    with expect_refusal(r"partition\.beta = 0\.02: in 100 attempts "):
        labels = np.arange(3000) % 10
        Dirichlet(clients=300, beta=0.02).assign(labels, 10, generator)


OFFICIAL = np.concatenate([np.repeat(np.arange(10), 500), np.repeat(np.arange(10), 50)])


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_the_training_split_is_dealt_out_and_all_are_tested_on_the_test_split(beta):
    draw = DirichletMin(clients=20, beta=beta).draw(OFFICIAL, 10, 500)
    assert sorted(np.concatenate(draw.train)) == list(range(5000))
    assert all(test.tolist() == list(range(5000, 5500)) for test in draw.test)
    assert min(map(len, draw.train)) >= 10
    assert min(len(np.unique(OFFICIAL[held])) for held in draw.train) >= 2
    assert 1 <= draw.attempts <= 3 and not draw.notes


def test_clients_with_one_class_swap_with_the_last_ones():
    chunks, held = np.arange(6), np.array([2, 1, 3, 0, 2, 2])
    assert [*swap(2, chunks, held)] == [0, 5, 2, 4, 3, 1]  # 1 with 5, 3 with 4
    assert [*swap(1, chunks, held)] == [*chunks] == [*range(6)]


def test_after_three_draws_the_last_one_counts_with_a_note():
    draw = DirichletMin(clients=20, least_classes=10).draw(OFFICIAL, 10, 500)
    assert draw.attempts == 3 and len(draw.notes) == 1 and " 3 " in draw.notes[0]
    assert sorted(np.concatenate(draw.train)) == list(range(5000))


def test_data_without_a_test_split_is_refused():
    with expect_refusal(r"partition\.scheme = 'dirichlet-min'"):
        DirichletMin().draw(OFFICIAL, 10, 0)
