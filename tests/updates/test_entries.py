"""Entries of messages that carry updates."""

import torch

from hpcfl.communication.message import Field, Mean
from hpcfl.updates import entries

ROWS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
WEIGHTS = torch.tensor([1, 3])
MEANS = {
    "control": Mean(ROWS[:, :1], WEIGHTS, change_of="server_control"),
    "model": Mean(ROWS[:, 1:], WEIGHTS),
}
INBOX = {"server_control": torch.tensor([9.0]), "model": torch.tensor([2.0, 2.0])}
BITS = torch.tensor([64.0, 32.0]).double()


def test_updates_are_changes_or_values_minus_received_ones():
    assert entries.list_received(MEANS) == ["server_control", "model"]
    updates = entries.join_updates(MEANS, INBOX)
    assert updates.tolist() == [[1, 0, 1], [4, 3, 4]]


def test_rows_arrive_as_they_were_packed():
    sent = entries.pack(MEANS, ROWS, BITS, as_rows=True)
    assert all(isinstance(entry, Field) for entry in sent.values())
    uplink = {name: entry.tensor for name, entry in sent.items()}
    arrived = entries.unpack(uplink, clients=2)
    assert torch.equal(arrived.join(), ROWS)
    assert arrived.weights.tolist() == [1, 3] and arrived.below == 0
    assert arrived.received == ["server_control", "model"]


def test_bits_are_counted_with_the_first_entry():
    sent = entries.pack(MEANS, ROWS, BITS, as_rows=False)
    assert entries.count_message_bits(sent.values(), 2).tolist() == [64, 32]


def test_entries_are_in_the_order_of_the_methods_names():
    uplink = {"a1": torch.zeros(1), "a:b": torch.zeros(2)}
    assert list(entries.unpack(uplink, clients=1).values) == ["a:b", "a1"]
