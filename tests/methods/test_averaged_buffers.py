"""Averaged batch-norm statistics."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from hpcfl.methods.overlays.averaged_buffers import AveragedBuffers

NAME = "buffers.model"


def test_received_statistics_replace_the_clients_own_but_for_counters():
    """The method does not receive them."""
    initial, averaged = torch.zeros(2), torch.tensor([True, False])
    overlay = AveragedBuffers(
        NAME, initial, averaged, lambda fleet: torch.tensor([1, 3])
    )
    fleet = SimpleNamespace(state={NAME: torch.tensor([[4.0, 7], [8, 9]])})
    sent = overlay.upload(fleet, {}, {})[NAME]
    assert sent.tensor is fleet.state[NAME] and sent.weights.tolist() == [1, 3]
    assert overlay.receive(fleet, {NAME: torch.tensor([5.0, 6]), "model": 0}) == {
        "model": 0
    }
    assert fleet.state[NAME].tolist() == [[5, 7], [5, 9]]
    quiet = replace(overlay, sends_counters=False)
    received = {NAME: torch.tensor([0.0, 3])}
    assert quiet.upload(fleet, received, {})[NAME].tensor.tolist() == [[5, 3], [5, 3]]
    server = overlay.server_state(None)
    assert overlay.aggregate(server, None, {NAME: initial + 1, "model": 0}) == {
        "model": 0
    }
    assert overlay.send(server, None, {})[NAME].tolist() == [1, 1]
