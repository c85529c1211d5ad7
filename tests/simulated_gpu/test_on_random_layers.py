"""Random layers with keys draw the same numbers on the device, also in graphs."""

import pytest
import torch

from hpcfl.clients.execution import cuda_graphs

COUNTS = [[4, 4, 0, 0], [6, 2, 1, 0], [3, 0, 0, 2]]


@pytest.mark.parametrize("method", ["fedavg", "per-fedavg"])
def test_clients_draw_the_same_numbers_on_device_and_cpu(
    on_gpu, on_cpu, monkeypatch, method
):
    monkeypatch.setattr(cuda_graphs, "SOON", 1)
    layered = {"name": "tiny:layered", "kind": "dropout"}
    seen = on_gpu(method, COUNTS, rounds=2, model=layered)
    plain = on_cpu(method, COUNTS, rounds=2, model=layered)
    torch.testing.assert_close(
        seen.played.state["server model"],
        plain.state["server model"],
        rtol=1e-4,
        atol=1e-5,
    )
