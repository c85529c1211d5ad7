"""Layers that draw by a key draw the same on the device, in graphs as well."""

import pytest
import torch

from hpcfl.clients.execution import cuda_graphs

COUNTS = [[4, 4, 0, 0], [6, 2, 1, 0], [3, 0, 0, 2]]


@pytest.mark.parametrize("method", ["fedavg", "per-fedavg"])
def test_clients_draw_on_the_device_what_they_draw_on_a_cpu(
    gpu, federate, monkeypatch, method
):
    monkeypatch.setattr(cuda_graphs, "SOON", 1)
    ended = [
        federate(
            method,
            COUNTS,
            rounds=2,
            model={"name": "tiny:layered", "kind": "dropout"},
            runtime={"device": device, "lanes": 3},
        )
        for device in ("cuda", "cpu")
    ]
    on_device, on_cpu = (played.server["model"].cpu() for played in ended)
    torch.testing.assert_close(on_device, on_cpu, rtol=1e-4, atol=1e-5)
