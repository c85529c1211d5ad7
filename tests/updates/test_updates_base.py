"""Contracts of plug-ins that change updates."""

import numpy as np
import own_updates
import torch

from hpcfl.updates.base import Context

OWN = "own_updates:Negate"


def test_attackers_are_those_of_the_file_or_a_keyed_share():
    listed = own_updates.Negate(kind=OWN, clients=[3, 1])
    assert listed.find_attackers(0, 5).tolist() == [1, 3]
    drawn = own_updates.Negate(kind=OWN, share=0.25)
    attackers = drawn.find_attackers(7, 10)
    assert len(attackers) == 3  # ⌊2.5 + ½⌋
    assert drawn.find_attackers(7, 10).tolist() == sorted(attackers.tolist())
    assert drawn.find_attackers(8, 10).tolist() != attackers.tolist()


def test_a_clients_draws_do_not_depend_on_other_clients():
    context = Context(1, 2, np.array([0, 4]), 5)
    alone = context.select(np.array([False, True]))
    assert alone.ids.tolist() == [4]
    assert alone.random_of("a", 4).random() == context.random_of("a", 4).random()
    assert context.random_of("a", 0).random() != context.random_of("a", 4).random()
    assert context.random("a").random() != context.random("b").random()


def test_a_transform_without_further_functions_keeps_the_bits():
    transform = own_updates.Identity(kind="own_updates:Identity")
    bits = torch.tensor([64.0])
    assert transform.count_bits(torch.ones(1, 2), bits) is bits
    assert transform.finish(bits, None) is bits
