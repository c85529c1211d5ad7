"""All pairs of rules and attacks on synthetic updates, and each rule and each attack in
a whole run.
"""

from itertools import product

import numpy as np
import pytest
import tiny
import torch
from whole_runs import is_the_same_elsewhere, refuse

from hpcfl.experiment import plugins
from hpcfl.rows import mixing
from hpcfl.updates.base import Context

# keys without a default, or whose default would have no effect in few rounds
KEYS = {
    "krum": {"f": 1},
    "multi-krum": {"f": 1, "mixing": "nnm"},
    "bulyan": {"f": 1},
    "geometric-median": {"mixing": "bucketing"},
    "centered-clip": {"radius": 0.5},
    "norm-bound": {"bound": 0.5},
}
RULES, ATTACKS = (
    plugins.list_names(f"hpcfl.updates.{kind}") for kind in ("rules", "attacks")
)
OF_IMAGES = ("backdoor", "model-replacement")
COUNTS = [[8, 4, 0, 0], [0, 8, 4, 0], [0, 0, 8, 4], [4, 0, 0, 8]] * 2


class Memory(dict):
    """A server's rows, initially zeros."""

    def __missing__(self, name):
        return torch.zeros(9000)


def find(kind, name):
    return plugins.find(f"hpcfl.updates.{kind}", "key", name)


@pytest.mark.parametrize(("rule", "attack"), [*product(RULES, ATTACKS)])
def test_each_pair_is_finite_and_the_same_on_any_cores(rule, attack):
    generator = torch.Generator().manual_seed(3)
    own = torch.randn(8, 9000, generator=generator)
    attacker = find("attacks", attack)(kind=attack, clients=[6, 7])
    combined = []
    for cores in (1, 2):
        mixing.use_device(torch.device("cpu"), cores)
        shares = np.full(8, 1 / 8)
        context = Context(1, 2, np.arange(8), 8, memory=Memory(), shares=shares)
        last = context.select(np.arange(8) >= 6)
        forged = attacker.forge(own[6:], own[:6], last)
        updates = torch.cat([own[:6], forged])
        combine = find("rules", rule)(rule=rule, **KEYS.get(rule, {})).combine
        combined.append(combine(updates, torch.ones(8).double(), context))
    mixing.use_device(torch.device("cpu"))
    assert combined[0].isfinite().all()
    assert torch.equal(*combined)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(max(len(RULES), len(ATTACKS))))
def test_runs_are_the_same_on_any_number_of_ranks_and_resumed(tmp_path, place):
    rule, attack = RULES[place % len(RULES)], ATTACKS[place % len(ATTACKS)]
    method = {"name": ["fedavg", "ditto"][place % 2], "weights": "uniform"}
    table = tiny.table(
        method,
        COUNTS,
        rounds=2,
        aggregation={"rule": rule, **KEYS.get(rule, {})},
        attack={"kind": attack, "clients": [6]},
    )
    if attack in OF_IMAGES:
        table["data"] = {"dataset": "digits", "samples": 300}
        table["partition"] = {"scheme": "iid", "clients": len(COUNTS)}
    same, alone = is_the_same_elsewhere(tmp_path, table)
    assert same
    assert all(tensor.isfinite().all() for tensor in alone.state.values())


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"aggregation": {"rule": "norm-bound"}}, "aggregation.bound"),
        (
            {"attack": {"kind": "alie", "share": 0.8}},
            "'alie': z .* 6 attackers of 8 .* z$",
        ),
        ({"attack": {"kind": "alie", "share": 0.9, "z": 1.0}}, "2 honest"),
        ({"attack": {"kind": "ipm", "share": 1.0}}, "attack: all 8 clients"),
        (
            {"attack": {"kind": "backdoor", "share": 0.2}},
            r"'backdoor' .*\[5\]",
        ),
        (
            {"evaluation": {"scores": ["attack-success"]}},
            "evaluation.scores = 'attack_success' .*'backdoor'",
        ),
    ],
)
def test_an_invalid_section_is_refused(sections, words):
    refuse(words, counts=COUNTS, **sections)
