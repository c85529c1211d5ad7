"""Draws are functions of their key."""

import numpy as np
import torch

from hpcfl.rows import randomness


def test_a_draw_depends_on_its_key_alone():
    first = randomness.permutation(50, 0, "shuffle", 3, 7)
    randomness.permutation(50, 0, "other")
    assert np.array_equal(first, randomness.permutation(50, 0, "shuffle", 3, 7))


def test_every_part_of_the_key_counts():
    keys = [
        (0, "a", 1, 2),
        (1, "a", 1, 2),
        (0, "b", 1, 2),
        (0, "a", 2, 1),
        (0, "a", 12),
        (0, "a", "1", 2),
        (0, "a", 1, 2, 0),
    ]
    draws = {randomness.generator(*key).bytes(16) for key in keys}
    assert len(draws) == len(keys)


def test_permutations_are_complete_and_reach_all_orders():
    assert sorted(randomness.permutation(9, 0, "x")) == list(range(9))
    orders = {tuple(randomness.permutation(3, 0, "x", n)) for n in range(100)}
    assert len(orders) == 6


def test_keyed_draws_equal_those_of_earlier_versions():
    """Results of old runs are repeatable only while this holds."""
    assert randomness.permutation(8, 7, "shuffle", "train", 3, 1).tolist() == [
        6,
        0,
        1,
        5,
        3,
        7,
        4,
        2,
    ]


def test_torchs_generator_is_seeded_inside_and_untouched_outside():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    with randomness.seeded(0, "model", 1):
        first = torch.randn(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    with randomness.seeded(0, "model", 1):
        assert torch.equal(torch.randn(3), first)
    with randomness.seeded(0, "model", 2):
        assert not torch.equal(torch.randn(3), first)
