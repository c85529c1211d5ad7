"""Plans of rounds, and clients in messages."""

import sys

import numpy as np
import pytest

from hpcfl.errors import RankFailure
from hpcfl.simulation.round import RoundPlan, describe_clients, on_this_rank


def test_a_plan_of_some_clients_keeps_their_shares():
    everyone = np.arange(4)
    cohort, shares = np.array([0, 2, 3]), np.array([0.1, 0.2, 0.3])
    plan = RoundPlan(1, cohort, everyone, is_scored=False, epoch_shares=shares)
    part = plan.select(np.array([1, 2, 3]))
    assert part.cohort.tolist() == [2, 3] and part.epoch_shares.tolist() == [0.2, 0.3]
    assert part.audience.tolist() == [1, 2, 3] and part.is_scored


def test_only_some_clients_are_listed():
    assert describe_clients(np.array([3])) == "client 3"
    assert describe_clients(np.arange(11)).endswith("8, 9 …")


def test_a_hook_that_exits_is_a_failure_of_its_rank():
    with (
        pytest.raises(RankFailure, match=r"^round 3.*: SystemExit"),
        on_this_rank("round 3"),
    ):
        sys.exit()
