"""FedYogi: Reddi et al., Algorithm 2; ``test_fedadam.py`` tests the common parts."""

import torch

from hpcfl.methods.fedyogi import FedYogi


def test_the_second_moment_by_hand():
    """β₂ = 0.75. If v = 0.25 is below Δ² = 4, it increases by 0.25·4; if v = 1 is above
    Δ² = 0.25, it decreases by 0.25·0.25; at Δ² it does not change.
    """
    method = FedYogi(name="fedyogi", beta2=0.75)
    second = method.compute_second_moment(
        torch.tensor([0.25, 1, 2]), torch.tensor([4, 0.25, 2])
    )
    torch.testing.assert_close(second, torch.tensor([1.25, 0.9375, 2]))
