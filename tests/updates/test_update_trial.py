"""Trials of a user's transforms, rules and attacks on synthetic updates."""

import pytest
import torch
from own_updates import Halve, Identity, Negate
from playing import prepare_tiny
from refusals import expect_refusal

from hpcfl.updates.base import Rule, Transform
from hpcfl.updates.compression import Compression
from hpcfl.updates.update_trial import try_attack, try_rule, try_transform


class Centred(Transform):
    """A transform whose rows depend on the clients of the rank."""

    def apply(self, updates, context):
        return updates - updates.mean(dim=0)


class Cut(Transform):
    def apply(self, updates, context):
        return updates[:, :5]


class Nothing(Transform):
    def apply(self, updates, context):
        return None


class Keyed(Transform):
    """A valid transform, which fails for the width of the trial."""

    width: int = 1000

    def apply(self, updates, context):
        assert updates.shape[1] == self.width
        noise = [context.random_of("noise", one).random() for one in context.ids]
        return updates + torch.tensor(noise).float()[:, None]


class Gains(Keyed):
    """A transform with a negative number of bits."""

    def count_bits(self, updates, bits):
        return -bits


class CountsOnce(Keyed):
    def count_bits(self, updates, bits):
        return bits[:1]


class Truncates(Compression):
    """A compression that changes its argument, so that its error would be 0."""

    def compress(self, updates, context):
        updates[updates.abs() < 0.1] = 0
        return updates


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Truncates, "changes the updates"),
        (Centred, "depends on other clients"),
        (Cut, r"'apply' .*\[3, 5\]"),
        (Nothing, "'apply' .*NoneType"),
        (Gains, "'count_bits'"),
        (CountsOnce, "'count_bits'"),
    ],
)
def test_an_invalid_transform_is_refused(kind, named):
    with expect_refusal(named):
        try_transform(kind(kind="mine:Kind"))


def test_a_valid_transform_passes_and_an_error_is_left_to_the_preflight():
    for transform in (Keyed, Halve, Identity):
        try_transform(transform(kind="mine:Kind"))
    try_transform(Keyed(kind="mine:Keyed", width=7))


class Short(Negate):
    def forge(self, updates, honest, context):
        return updates[0]


def test_an_attack_forges_a_row_for_each_attacker():
    try_attack(Negate(kind="mine:Negate", share=0.1))
    with expect_refusal(r"'forge' .*\[1000\]"):
        try_attack(Short(kind="mine:Short", share=0.1))


class Middle(Rule):
    def combine(self, updates, weights, context):
        shares = torch.from_numpy(context.shares)
        return (shares[:, None] * updates.double()).sum(dim=0)


class Divides(Rule):
    def combine(self, updates, weights, context):
        return updates.sum(dim=0) / (weights.sum() - len(weights))


class Forgets(Rule):
    is_weighted = True

    def combine(self, updates, weights, context):
        updates.mean(dim=0)


class Unbounded(Middle):
    def bound_updates(self, updates):
        return updates[0]


@pytest.mark.parametrize(
    ("kind", "named"),
    [(Divides, "'combine'"), (Forgets, "'combine'"), (Unbounded, "'bound_updates'")],
)
def test_an_invalid_rule_is_refused(kind, named):
    try_rule(Middle(rule="mine:Middle"))
    with expect_refusal(named):
        try_rule(kind(rule="mine:Kind"))


def test_the_rule_of_an_experiment_is_tried():
    with expect_refusal(r"aggregation\.rule = .*:Forgets': 'combine'"):
        prepare_tiny("fedavg", aggregation={"rule": f"{__name__}:Forgets"})
