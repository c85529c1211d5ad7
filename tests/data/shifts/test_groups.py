"""Groups of clients and concepts of drifting clients: heterogeneity.md H0, H7, H8."""

import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.data.shifts import groups
from hpcfl.data.shifts.base import Facts
from hpcfl.data.shifts.rotation import Rotation


def facts(clients, newcomers=0):
    return Facts(0, 1, clients, newcomers, (1, 8, 8), torch.uint8, 255.0, 10)


def test_groups_are_blocks_or_drawn_and_newcomers_are_counted_among_themselves():
    def deal(assign, newcomers=5):
        shift = Rotation(assign=assign)
        return groups.deal_to_all(shift, facts(8, newcomers), 3).tolist()

    assert deal("blocks") == [0, 0, 0, 1, 1, 1, 2, 2, 0, 0, 1, 1, 2]
    random = deal("random")
    assert random != deal("blocks")
    assert np.bincount(random[:8]).tolist() == [3, 3, 2]
    assert np.bincount(random[8:]).tolist() == [2, 2, 1]
    assert deal("random", newcomers=2)[:8] == random[:8]


def test_a_share_of_the_clients_is_in_equal_groups():
    shift = Rotation(assign="blocks")
    dealt = groups.deal_to_share(shift, facts(10, 5), 0.4, 3)
    assert dealt.tolist() == [1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0]


@pytest.mark.parametrize("assign", ["blocks", "random"])
def test_cells_have_exact_sizes_and_the_rest_is_plain(assign):
    """FedRC's shares of 23 clients: ⌊4.6⌋, ⌊4.6⌋, ⌊9.2⌋, ⌊4.6⌋ = 4, 4, 9, 4; two
    remain.
    """
    shares = {"plain": 0.2, "first": 0.2, "second": 0.4, "both": 0.2}
    shift = Rotation(assign=assign, cells=shares)
    cells = groups.deal_cells(shift, facts(23))
    assert np.bincount(cells[0]).tolist() == [6, 4, 9, 4]
    first = groups.deal_within_cells(
        Rotation(assign="random"), facts(23), cells, own="first", groups=2
    )
    second = groups.deal_within_cells(shift, facts(23), cells, own="second", groups=3)
    assert [np.bincount(first + 2 * (second > 0)).tolist()] == [[6, 4, 9, 4]]
    assert np.bincount(second).tolist() == [10, 7, 6]


@pytest.mark.parametrize(
    ("who", "concepts", "expected"),
    [
        ("all", 3, [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2]]),
        (0.5, 2, [[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]),
        (0.3, 2, [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]),
        ("staggered", 2, [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]),
        ("staggered", 3, [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 2, 2]]),
    ],
)
def test_clients_drift_together_or_one_after_the_other(who, concepts, expected):
    shift = Rotation(assign="blocks", at=[2, 5], who=who)
    assert groups.list_steps(shift, facts(4), concepts).tolist() == expected


def test_a_table_lists_the_steps(tmp_path):
    path = tmp_path / "A.cp"
    shift = Rotation(at=[2, 3], table=str(path))
    path.write_text("0 0 0\n1,0,1\n\n0 2 1\n")
    steps = groups.list_steps(shift, facts(3, 2), 3)
    assert steps.tolist() == [[0, 0, 0, 0, 0], [1, 0, 1, 1, 0], [0, 2, 1, 0, 2]]
    for clients, concepts, text, words in (
        (4, 3, None, r"shift\.0\.table: .*\[3, 3\].*\[3, 4\]"),
        (3, 2, None, r"shift\.0\.table: .* 0 … 1$"),
        (3, 3, "0 x 1\n", r"A\.cp: .*'x'"),
        (3, 3, "0 1.5 1\n", r"A\.cp: .*'1\.5'"),
        (3, 3, "0 1\n1\n", r"A\.cp: "),
    ):
        if text is not None:
            path.write_text(text)
        with expect_refusal(words):
            groups.list_steps(shift, facts(clients), concepts)
    path.unlink()
    with expect_refusal(r"A\.cp: "):
        groups.list_steps(shift, facts(3), 3)
