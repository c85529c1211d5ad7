"""FedNH's spiral: protocols.md B7."""

import pytest
import torch
from user_data import load


def test_the_spiral_has_arms_of_sixty_degrees():
    data = load("spiral", ".")
    assert data.y.bincount().tolist() == [3100] * 6 and data.official_test == 600
    assert torch.equal(data.normalise(data.x[:5]), data.x[:5])
    radius, angle = (
        data.x.norm(dim=1),
        torch.atan2(data.x[:, 0], data.x[:, 1]) % (2 * torch.pi),
    )
    assert radius.min() == pytest.approx(1) and radius.max() == pytest.approx(10)
    for k in range(6):
        arm = data.y == k
        for ring, expected in ((radius < 1.2, k), (radius > 9.8, k + 1)):
            offset = (angle[arm & ring] - expected * torch.pi / 3 + torch.pi) % (
                2 * torch.pi
            ) - torch.pi
            assert offset.mean() == pytest.approx(0.25, abs=0.1)
            assert offset.min() > -0.1
            assert offset.max() < 0.6


def test_the_imbalanced_spiral_halves_class_by_class():
    sizes = load("spiral-imbalanced", ".").y[:-600].bincount().tolist()
    assert sizes == [3000, 1500, 750, 375, 187, 93]
