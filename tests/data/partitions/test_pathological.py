"""Blocks of clients with a few classes each: protocols.md D1."""

import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.data.partitions.pathological import plugin

LABELS = np.repeat(np.arange(10), 600)


def assign(labels=LABELS, clients=20, per_client=2, seed=0):
    scheme = plugin(clients=clients, classes_per_client=per_client)
    classes = int(labels.max()) + 1
    return scheme.assign(labels, classes, np.random.default_rng(seed))


def held_classes(assignment, labels=LABELS):
    """Return the classes of each client."""
    return [np.unique(labels[held]).tolist() for held in assignment.samples]


def take_class_0(assignment, labels=LABELS):
    """Return the samples of class 0 of the four clients that have it."""
    return [held[labels[held] == 0] for held in assignment.samples[:4]]


def test_clients_fall_into_blocks():
    labels = np.random.default_rng(0).permutation(LABELS)
    assignment = assign(labels)
    blocks = [[2 * (i // 4), 2 * (i // 4) + 1] for i in range(20)]
    assert held_classes(assignment, labels) == blocks
    assert sorted(np.concatenate(assignment.samples)) == list(range(6000))
    assert assignment.notes == []


def test_a_class_is_dealt_out_in_stored_order_within_the_bounds():
    # 4 clients per class: a mean of 150, so 15 … 149 for all but the last
    for seed in range(20):
        *chunks, last = take_class_0(assign(seed=seed))
        assert np.concatenate([*chunks, last]).tolist() == list(range(600))
        assert all(15 <= len(chunk) <= 149 for chunk in chunks) and len(last) > 150


def test_a_small_class_is_dealt_out_by_the_least_of_a_client():
    """40 samples of class 0 for 4 clients: a tenth of the mean is 1, but the minimum
    per client is ⌊min(40, N/2M)⌋/10 = 4.
    """
    labels = np.repeat(np.arange(10), [40, *[600] * 9])
    sizes = set()
    for seed in range(50):
        *chunks, _ = take_class_0(assign(labels, seed=seed), labels)
        sizes |= set(map(len, chunks))
    assert sizes == set(range(4, 10))


def test_unused_classes_are_noted():
    assignment = assign(clients=7, per_client=3)
    blocks = [[0, 1, 2]] * 3 + [[3, 4, 5]] * 3 + [[6, 7, 8]]
    assert held_classes(assignment) == blocks
    [note] = assignment.notes
    assert "class 9 (600 " in note
    few = assign(clients=3)
    assert held_classes(few) == [[0, 1], [2, 3], [4, 5]] and len(few.notes) == 1


def test_a_short_last_block_is_noted():
    assignment = assign(clients=10, per_client=3)
    assert held_classes(assignment)[-1] == [9]
    [note] = assignment.notes
    assert "9 to 9 " in note and " 1 of 3 " in note


def test_more_classes_than_there_are_is_refused():
    with expect_refusal("classes_per_client = 11"):
        assign(np.arange(100) % 10, clients=5, per_client=11)


@pytest.mark.parametrize(
    ("per_class", "expected"),
    [
        # mean below 1
        (3, r"partition\.clients .* class 0 .* 0\.07 .* 0\.75 "),
        # no integer in the interval
        (4, r"partition\.clients .* class 0 .* 0\.10 .* 1\.00 "),
    ],
)
def test_too_few_samples_are_refused_with_the_numbers(per_class, expected):
    with expect_refusal(expected):
        assign(np.repeat(np.arange(10), per_class))
