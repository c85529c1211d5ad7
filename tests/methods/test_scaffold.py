"""SCAFFOLD: Karimireddy et al., Algorithm 1, option II."""

import numpy as np
import torch
from by_hand import quadratic

from hpcfl.methods.scaffold import Scaffold


def test_two_local_trainings_by_hand(make_fleet):
    """F = ½(y − 1)² in each parameter, η = 0.1, two steps from x = 0.

    All controls 0: y = 0.1, then 0.19; c_i⁺ = (0 − 0.19)/(2·0.1) = −0.95, the mean of
    the gradients −1 and −0.9. With c = −0.5 the correction is −0.5 + 0.95 = 0.45: y =
    −0.1·(−1 + 0.45) = 0.055, then 0.055 − 0.1·(−0.945 + 0.45) = 0.1045; c_i⁺ = −0.95 +
    0.5 − 0.1045/0.2 = −0.9725, a change of −0.0225.

    The second client has less than a mini-batch, so it takes no step and keeps its
    control.
    """
    counts = [[4, 0, 0, 0], [3, 0, 0, 0]]
    method = Scaffold(name="scaffold")
    width = make_fleet().layout.width
    controls = torch.zeros(2, width)
    for control, model, change, own in (
        (0.0, 0.19, -0.95, -0.95),
        (-0.5, 0.1045, -0.0225, -0.9725),
    ):
        fleet = make_fleet(counts, lr=0.1, epochs=2, batch_size=4, drop_last=True)
        fleet.loss = quadratic(1)
        fleet.state["control"] = controls
        inbox = {"model": torch.zeros(width), "control": torch.full((width,), control)}
        sent = method.update(fleet, inbox)
        controls = fleet.state["control"]
        for found, expected in (
            (sent["model"].tensor, model),
            (sent["control"].tensor, change),
            (controls, own),
        ):
            np.testing.assert_allclose(found[0], expected, rtol=1e-4)
            assert not found[1].any()


def test_the_servers_step_by_hand(cohort):
    """Two of four clients: x = 1 + 0.5·(3 − 1) = 2, c = 1 + 2/4·0.5 = 1.25."""
    clients = cohort([[1.0], [1], [1], [1]])
    some = type(clients)(clients.ids[:2], clients.counts[:2], clients.setup, 1)
    server = {"model": torch.tensor([1.0]), "control": torch.tensor([1.0])}
    Scaffold(name="scaffold", server_lr=0.5).aggregate(
        server, some, {"model": torch.tensor([3.0]), "control": torch.tensor([0.5])}
    )
    assert server == {"model": torch.tensor([2.0]), "control": torch.tensor([1.25])}


def test_the_servers_control_is_the_mean_of_the_clients(federate):
    """With uniform weights this also holds under partial participation: both change by
    the same amounts.
    """
    played = federate("scaffold", participation={"fraction": 0.6})
    torch.testing.assert_close(
        played.server["control"], played.clients["control"].mean(dim=0)
    )
