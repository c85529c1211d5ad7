"""FedProx: methods-1.md §4.3."""

import numpy as np
import torch
from by_hand import loss_of, quadratic


def test_proximal_step_by_hand(make_fleet):
    # w = 2, anchor 0.5, F(w) = ½w², μ = 3, γ = 0.1: w − γ(w + μ(w − 0.5)) = 2 − 0.1(2 +
    # 4.5) = 1.35
    fleet = make_fleet([[1, 0, 0, 0]], lr=0.1, lanes=1)
    fleet.loss = quadratic()
    width = fleet.layout.width
    ended = fleet.train(
        torch.full((width,), 2.0), proximal=(3.0, torch.full((width,), 0.5))
    )
    np.testing.assert_allclose(ended, 1.35, rtol=1e-6)


def test_the_recorded_data_loss_is_without_the_proximal_term(make_fleet, rows_of):
    """Two full-batch epochs. The loss of the data in the last epoch is computed at the
    model after the first step, for any strength of the proximal term. The training loss
    includes the proximal term at that model, (3/2)‖w‖².
    """

    def trained(epochs):
        fleet = make_fleet(dtype=torch.float64, batch_size=100)
        return fleet, fleet.train(
            rows_of(fleet),
            proximal=(3.0, torch.zeros(fleet.layout.width).double()),
            epochs=epochs,
        )

    fleet, start = trained(1)
    expected = torch.stack(
        [loss_of(fleet, client, start[client]) for client in range(5)]
    )
    fleet, ended = trained(2)
    torch.testing.assert_close(fleet.results.data_losses, expected)
    torch.testing.assert_close(
        fleet.results.losses, expected + 1.5 * ended.square().sum(dim=1)
    )
