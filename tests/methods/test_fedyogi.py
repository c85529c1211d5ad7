"""FedYogi: Reddi et al., Algorithm 2; what it shares with FedAdam is tested there."""

import torch

from hpcfl.methods.fedyogi import FedYogi


def test_the_second_moment_by_hand():
    """β₂ = 0.75. Below Δ² = 4, v = 0.25 rises by 0.25·4; above Δ² = 0.25, v = 1 falls
    by 0.25·0.25; at Δ² it stays.
    """
    method = FedYogi(name="fedyogi", beta2=0.75)
    second = method.second(torch.tensor([0.25, 1, 2]), torch.tensor([4, 0.25, 2]))
    torch.testing.assert_close(second, torch.tensor([1.25, 0.9375, 2]))
