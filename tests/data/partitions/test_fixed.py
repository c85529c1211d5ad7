"""DiversiFed's partitions and their edge cases, protocols.md D4 to D7:
client-dirichlet, pathological-pairs and grouped.
"""

import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.data.partitions.fixed import ClientDirichlet, Grouped, PathologicalPairs


def labels_of(classes, train, test):
    """Return training and then test labels with equal numbers of each class."""
    numbers = np.arange(classes)
    return np.concatenate([np.repeat(numbers, train), np.repeat(numbers, test)])


CIFAR = labels_of(10, 5000, 1000)
PATH = labels_of(9, 9000, 700)
SMALL = labels_of(10, 20, 10)


def counts(draw, labels, part, classes=10):
    return np.stack(
        [np.bincount(labels[held], minlength=classes) for held in getattr(draw, part)]
    )


@pytest.mark.parametrize(
    "scheme",
    [ClientDirichlet(clients=40), PathologicalPairs(clients=40)],
    ids=["client-dirichlet", "pathological-pairs"],
)
def test_fixed_numbers_from_the_official_splits(scheme):
    draw = scheme.draw(CIFAR, 10, 10_000)
    parts = (draw.train, 500, 0, 50_000), (draw.test, 100, 50_000, 60_000)
    for part, each, low, high in parts:
        for held in part:
            assert len(np.unique(held)) == len(held) == each
            assert low <= held.min() and held.max() < high
    train, test = counts(draw, CIFAR, "train"), counts(draw, CIFAR, "test")
    # the same distribution, except for rounding half a sample of each class
    assert np.abs(train / 5 - test).max() <= 5
    assert len(np.unique(np.concatenate(draw.train))) < 20_000  # clients share samples


def test_a_draw_of_one_client_does_not_depend_on_the_others():
    few, many = (ClientDirichlet(clients=m).draw(CIFAR, 10, 10_000) for m in (2, 5))
    np.testing.assert_array_equal(few.train, many.train[:2])


@pytest.mark.parametrize(
    ("beta", "classes", "share"), [(0.1, 10, 0.66), (0.01, 100, 0.63)]
)
def test_the_largest_share_is_that_of_the_public_code(beta, classes, share):
    generator = np.random.default_rng(0)
    scheme = ClientDirichlet(beta=beta)
    largest = [scheme.draw_shares(classes, generator).max() for _ in range(2000)]
    assert np.mean(largest) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("shares", "samples", "last_class", "largest_remainder"),
    [
        ([0.26, 0.26, 0.48], 10, [3, 3, 4], [3, 2, 5]),
        # the second is clipped so that the sum does not change
        ([0.5, 0.5, 0.0], 5, [3, 2, 0], [3, 2, 0]),
        ([0.15, 0.15, 0.15, 0.55], 10, [2, 2, 2, 4], [2, 2, 1, 5]),
    ],
)
def test_both_rules_of_rounding(shares, samples, last_class, largest_remainder):
    expected = {"last-class": last_class, "largest-remainder": largest_remainder}
    for rounding, counted in expected.items():
        scheme = ClientDirichlet(rounding=rounding)
        assert scheme.count_samples(np.array(shares), samples).tolist() == counted


def test_each_client_holds_its_own_two_classes_in_equal_numbers():
    draw = PathologicalPairs(clients=40, train_samples=300).draw(CIFAR, 10, 10_000)
    train, test = counts(draw, CIFAR, "train"), counts(draw, CIFAR, "test")
    assert ((train == 150) | (train == 0)).all() and ((train > 0).sum(1) == 2).all()
    assert ((train > 0) == (test > 0)).all() and set(test.flatten()) == {0, 50}
    assert len({tuple(row) for row in train > 0}) > 10  # drawn, not in blocks


def test_groups_hold_their_dominant_classes_and_no_sample_twice():
    draw = Grouped(clients=20).draw(PATH, 9, 6300)
    for part, dominant, each in (("train", 400, 500), ("test", 80, 100)):
        held = counts(draw, PATH, part, 9)
        for group, clients in enumerate((range(6), range(6, 12), range(12, 20))):
            assert (held[clients, 3 * group : 3 * group + 3].sum(1) == dominant).all()
        assert (held.sum(1) == each).all()
        everything = np.concatenate(getattr(draw, part))
        assert len(np.unique(everything)) == len(everything) == 20 * each


def test_groups_must_fit():
    with expect_refusal(r"partition\.groups = \[6, 6, 8\]"):
        Grouped(clients=10).draw(PATH, 9, 6300)


@pytest.mark.parametrize(
    "scheme",
    [
        PathologicalPairs(clients=3, train_samples=60),
        ClientDirichlet(clients=3, train_samples=150),
        Grouped(clients=3, groups=[1, 2], train_samples=150),
    ],
    ids=lambda scheme: scheme.scheme,
)
def test_too_few_samples_are_refused_unless_replacement_is_on(scheme):
    words = rf"'{scheme.scheme}': client \d.* partition\.replacement = true$"
    with expect_refusal(words):
        scheme.draw(SMALL, 10, 100)
    keys = {"replacement": True, "test_samples": 20}
    draw = scheme.model_copy(update=keys).draw(SMALL, 10, 100)
    assert [len(held) for held in draw.train] == [scheme.train_samples] * 3


def test_a_class_without_samples_cannot_be_replaced():
    scheme = PathologicalPairs(clients=20, train_samples=10, replacement=True)
    with expect_refusal(r"client 0, class 0 .* of 0; "):
        scheme.draw(SMALL[SMALL > 4], 10, 50)


def test_more_classes_than_there_are_is_refused():
    with expect_refusal("classes_per_client = 11"):
        PathologicalPairs(classes_per_client=11).draw(CIFAR, 10, 10_000)


def test_data_without_an_official_test_split_is_cut_at_random():
    scheme = PathologicalPairs(clients=4, train_samples=20, test_samples=4)
    draw = scheme.draw(SMALL, 10, 0)
    train, test = np.concatenate(draw.train), np.concatenate(draw.test)
    assert not np.isin(train, test).any()
    assert train.max() > 200 and test.max() < 300  # from the whole pool


def test_replacement_is_for_classes_that_are_too_small_alone():
    """With replacement enabled, a large enough pool still gives different samples; a
    smaller one repeats some.
    """
    scheme = ClientDirichlet(clients=1, replacement=True)
    generator = np.random.default_rng(0)
    assert len(set(scheme.pick(np.arange(20), 8, generator))) == 8
    assert sorted(scheme.pick(np.arange(20), 20, generator)) == list(range(20))
    small = scheme.pick(np.arange(3), 7, generator)
    assert len(small) == 7 and set(small) <= {0, 1, 2}


def test_other_classes_are_drawn_in_proportion_to_the_pool():
    """These are classes 3 to 8 for the first group: a class with twice the samples is
    drawn twice as often.
    """
    sizes = np.array([9000] * 8 + [18_000])
    labels = labels_of(9, sizes, 700)
    draw = Grouped(clients=20).draw(labels, 9, 6300)
    held = counts(draw, labels, "train", 9)[:6].sum(0)
    assert held[8] / held[3:8].mean() == pytest.approx(2, abs=0.35)
