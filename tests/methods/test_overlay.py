"""Overlays."""

import torch

from hpcfl.methods.base import Overlay


def test_an_overlay_changes_nothing_by_itself():
    overlay, message = Overlay(), {"model": torch.ones(2)}
    assert overlay.server_state(None) == overlay.client_state(None) == {}
    assert overlay.send({}, None, message) is message
    assert overlay.receive(None, message) is message
    assert overlay.upload(None, message, message) is message
    assert overlay.aggregate({}, None, message) is message
