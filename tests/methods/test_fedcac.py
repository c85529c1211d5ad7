"""FedCAC: methods-2.md §11."""

import numpy as np
import pytest
import torch
from torch import nn

from hpcfl.methods.fedcac import FedCAC, compute_overlaps, find_critical, weigh_groups
from hpcfl.rows import layout


def server(clients, width):
    return {
        "model": torch.zeros(width),
        "custom": torch.zeros(clients, width),
        "masks": torch.zeros(clients, width, dtype=torch.bool),
    }


def test_overlap_of_unequal_sizes_may_be_asymmetric_and_negative():
    # m_1 has 1 entry, m_2 has 4, no shared entry: O_12 = 1 − 5/2 = −1.5, O_21 = 1 −
    # 5/8; an empty mask has no overlap
    masks = torch.tensor([[1, 0, 0, 0, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
    found = compute_overlaps(masks)
    assert found[0, 1] == -1.5 and found[1, 0] == 0.375
    assert (found[2] == 0).all() and (found.diagonal() == 0).all()


def test_groups_narrow_with_the_rounds():
    # mean 0.5, max 0.8: bounds 0.5, 0.65, 0.8 and beyond at t/β = 0, ½, 1, 2
    overlap = torch.tensor(
        [[0.0, 0.8, 0.2], [0.7, 0.0, 0.5], [0.3, 0.5, 0.0]], dtype=torch.float64
    )
    marked = torch.ones(3, dtype=torch.bool)
    expected = {
        0.0: [[1, 1, 0], [1, 1, 1], [0, 1, 1]],
        0.5: [[1, 1, 0], [1, 1, 0], [0, 0, 1]],
        1.0: [[1, 1, 0], [0, 1, 0], [0, 0, 1]],
        2.0: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    }
    for progress, members in expected.items():
        found = weigh_groups(overlap, marked, progress)
        assert ((found > 0) == torch.tensor(members).bool()).all()
        np.testing.assert_allclose(found.sum(dim=1), 1)
    some = torch.tensor([True, False, True])
    assert weigh_groups(overlap, some, 0.0)[1].tolist() == [0, 1, 0]
    assert weigh_groups(overlap[:1, :1], marked[:1], 0.5).tolist() == [[1.0]]


class Net(nn.Module):
    """A model with tensors of 4 and 2 entries."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        # s = |(after − before)·after| is 0, 2, 6, 12 in the first tensor and 0.01, 0.03
        # in the second
        (0.5, [0, 0, 1, 1, 0, 1]),
        (0.3, [0, 0, 0, 1, 0, 0]),
        (1.0, [0, 1, 1, 1, 1, 1]),
        (0.0, [0] * 6),
    ],
)
def test_marks_the_most_sensitive_entries_of_each_tensor(share, expected):
    before = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0, 0.2]])
    after = torch.tensor([[1.0, 2.0, 3.0, 4.0, 0.1, 0.3]])
    # share 1: the smallest entry of the first tensor is 0, so the smallest entry above
    # 1e-20 replaces it
    assert find_critical(
        layout.lay_out_parameters(Net()), before, after, share
    ).int().tolist() == [expected]


def test_unchanged_parameters_are_not_critical():
    rows = torch.randn(2, 6)
    assert not find_critical(layout.lay_out_parameters(Net()), rows, rows, 0.5).any()


def test_blends_of_three_clients_by_hand(cohort):
    # masks 1 and 2 agree, mask 3 has no common entry: O = [[·,1,0],[1,·,0],[0,0,·]],
    # mean ⅓, t/β = ½: bound ⅔. Groups {1,2}, {1,2}, {3}
    models = torch.tensor([[1.0, 1.0, 1.0], [3.0, 3.0, 3.0], [11.0, 11.0, 11.0]])
    masks = torch.tensor([[1, 0, 0], [1, 0, 0], [0, 0, 1]]).bool()
    expected = [[2.0, 5.0, 5.0], [2.0, 5.0, 5.0], [5.0, 5.0, 11.0]]
    method, state = FedCAC(name="fedcac", beta=100.0), server(3, 3)
    uplink = {"model": models, "mask": masks}
    method.aggregate(state, cohort(torch.ones(3, 1), round=50), uplink)
    after = cohort(torch.ones(3, 1), round=51)
    assert method.send(state, after)["model"].tolist() == expected


def test_clients_outside_keep_their_marked_entries(cohort):
    """Clients 0 and 2 upload. Client 1 has no upload so far and receives the average in
    all entries.
    """
    models = torch.tensor([[1.0, 1.0], [5.0, 5.0]])
    masks = torch.tensor([[True, False], [False, True]])
    method, state = FedCAC(name="fedcac"), server(3, 2)
    both = cohort(torch.ones(2, 1), ids=[0, 2], round=200)
    method.aggregate(state, both, {"model": models, "mask": masks})
    everyone = cohort(torch.ones(3, 1))
    before = method.send(state, everyone)["model"]
    assert (
        before.tolist() == [[3.0, 3.0]] * 3
    )  # equal overlaps give one group in any round
    method.aggregate(
        state,
        cohort(torch.ones(1, 1), ids=[2]),
        {"model": torch.tensor([[9.0, 9.0]]), "mask": masks[1:]},
    )
    assert method.send(state, everyone)["model"].tolist() == [
        [3.0, 9.0],
        [9.0, 9.0],
        [9.0, 9.0],
    ]


def test_changes_are_measured_from_the_blended_start(make_fleet, rows_of):
    fleet = make_fleet()
    start, trained = rows_of(fleet), rows_of(fleet, 2)
    inbox = {"model": fleet.setup.initial(), "start": start}
    sent = FedCAC(name="fedcac", tau=0.5).upload(fleet, inbox, trained)["mask"].tensor
    assert torch.equal(sent, find_critical(fleet.layout, start, trained, 0.5))
