"""LG-FedAvg: methods-3.md §5."""

import pytest
import torch

from hpcfl.methods.lg_fedavg import LGFedAvg


class Apart(LGFedAvg):
    """LG-FedAvg without shared layers."""

    def find_shared_columns(self, layout):
        return slice(layout.width, layout.width)


def test_a_client_starts_from_its_body_under_the_shared_layers(make_fleet, rows_of):
    """The shared layers of clients with 3 and 1 samples, (1, …) and (5, …), have the
    weights 3 : 1, so their mean is 2.
    """
    fleet = make_fleet([[3, 0, 0, 0], [0, 1, 0, 0]])
    method = LGFedAvg(name="lg-fedavg")
    head = fleet.layout.columns("head")
    trained = rows_of(fleet)
    trained[:, head] = torch.tensor([[1.0], [5.0]])
    method.store_state(fleet, trained)
    mean = method.upload(fleet, {}, trained)["head"]
    average = (mean.weights.float() @ mean.tensor) / mean.weights.sum()
    assert (average == 2).all()
    received = method.received(fleet, {"head": average})
    assert torch.equal(received[:, : head.start], trained[:, : head.start])
    assert (received[:, head] == 2).all()


@pytest.mark.parametrize("layers", [1, "output", 2])
def test_only_the_shared_layers_are_counted_as_sent(federate, layers):
    played = federate(
        {"name": "lg-fedavg", "layers": layers}, model={"hidden": [6, 5]}, rounds=1
    )
    # 6·5 + 5 in the hidden layer, 5·4 + 4 in the head
    shared = 24 if layers != 2 else 24 + 35
    assert (played.floats == shared).all()
