"""Lists of stages: their order, their seconds, and their errors."""

import contextlib
from types import SimpleNamespace

import numpy as np

from hpcfl.simulation.stages import RoundPlan, Stage, describe_clients, play


class Stopwatch:
    """Phases that began, in order."""

    def __init__(self):
        self.begun = []

    def phase(self, name):
        self.begun.append(name)
        return contextlib.nullcontext()


def make_round():
    return SimpleNamespace(name="round 7", stopwatch=Stopwatch(), work=[])


def test_stages_run_in_order_and_observers_see_the_round_after_each():
    round, seen = make_round(), []
    stages = [
        Stage("add", "send", "adding", lambda round: round.work.append(1)),
        Stage("double", "train", "doubling", lambda round: round.work.append(2)),
    ]
    play(round, stages, [lambda stage, round: seen.append((stage, *round.work))])
    assert seen == [("add", 1), ("double", 1, 2)]
    assert round.stopwatch.begun == ["send", "train"]


def test_a_plan_of_some_clients_keeps_their_shares():
    everyone = np.arange(4)
    cohort, shares = np.array([0, 2, 3]), np.array([0.1, 0.2, 0.3])
    plan = RoundPlan(1, cohort, everyone, is_scored=False, shares=shares)
    part = plan.select(np.array([1, 2, 3]))
    assert part.cohort.tolist() == [2, 3] and part.shares.tolist() == [0.2, 0.3]
    assert part.audience.tolist() == [1, 2, 3] and part.is_scored


def test_only_some_clients_are_listed():
    assert describe_clients(np.array([3])) == "client 3"
    assert describe_clients(np.arange(11)).endswith("8, 9 …")
