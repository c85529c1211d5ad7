"""Entries of messages as one vector."""

import torch

from hpcfl.communication.message import Field
from hpcfl.updates import vectors

SENT = {
    "b": Field(torch.zeros(2)),
    "a": torch.zeros(3),
    "update.clip": torch.zeros(1),
    "own": torch.zeros(4, 5),
    "count": torch.zeros(1, dtype=torch.int64),
}


def test_floating_point_entries_of_all_clients_are_adjacent_columns():
    assert vectors.find_widths(SENT) == {"a": 3, "b": 2}
    assert vectors.find_columns(SENT, ["b", "a"]).tolist() == [3, 4, 0, 1, 2]


def test_changes_are_added_to_sent_entries_or_passed_on():
    before = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([5.0])}
    changes = {"a": torch.tensor([0.5, -1.0]), "c:b": torch.tensor([0.25])}
    combined = vectors.add_changes(before, changes)
    assert combined["a"].tolist() == [1.5, 1.0]
    assert combined["c"].tolist() == [0.25]
