"""Contracts of partition schemes and of sources."""

import numpy as np
from refusals import expect_refusal
from test_partition import TOY

from hpcfl.data import partition
from hpcfl.data.partitions.base import (
    Assignment,
    MergedScheme,
    round_down,
)
from hpcfl.data.sources.base import Source
from hpcfl.experiment import config


def test_largest_remainders_by_hand():
    """10 in the proportion 1 : 2 : 4 is exactly 1.43, 2.86 and 5.71: two are rounded
    up.
    """
    assert round_down(np.array([1.0, 2.0, 4.0]) / 7 * 10, 10).tolist() == [1, 3, 6]
    assert round_down(np.ones(4) / 4 * 10, 10).tolist() == [3, 3, 2, 2]


def test_a_shared_sample_is_refused():
    class Greedy(MergedScheme):
        scheme: str = "greedy"

        def assign(self, labels, classes, generator):
            return Assignment([np.arange(10), np.arange(9, 20)])

    with expect_refusal(r"partition\.scheme = 'greedy'"):
        partition.make(Greedy(clients=2), TOY)


class Misread(Source):
    """A scheme with other names of its parameters."""

    def read(self, called, place):
        raise AssertionError


misread = Misread()


def test_a_source_that_is_read_otherwise_is_told():
    table = {"method": {"name": "fedavg"}, "data": {"dataset": f"{__name__}:misread"}}
    told = r"data\.dataset = .*\(name, root, \*, .*\(called, place\)"
    with expect_refusal(told):
        config.parse(table)
