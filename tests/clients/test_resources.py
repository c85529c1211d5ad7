"""Predictions of clients in chunks."""

import torch
from playing import prepare_tiny


def test_models_that_do_not_fit_are_scored_in_fewer_lanes(monkeypatch):
    resources = prepare_tiny("fedavg", runtime={"lanes": 4}).resources
    pools = [resources.samples.train[client] for client in resources.samples.train]
    start = resources.setup.initial()
    rows = torch.stack([start + number for number in range(len(pools))])
    buffers = torch.zeros(len(pools), 0)
    given = rows, buffers, pools, lambda model, x, lane: model(x)
    expected = resources.compute_outputs(*given)
    predict = resources.kernel.predict

    def refuse_many(tensors, x, variables, function):
        if len(x) > 2:
            raise torch.OutOfMemoryError("full")
        return predict(tensors, x, variables, function)

    monkeypatch.setattr(resources.kernel, "predict", refuse_many)
    found = resources.compute_outputs(*given)
    assert resources.kernel.widest == 2
    for client, outputs in enumerate(found):
        assert torch.allclose(outputs, expected[client], atol=1e-6)
