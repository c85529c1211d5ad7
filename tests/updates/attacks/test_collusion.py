"""Attacks of several clients compared with values computed by hand, and with a search
by bisection.
"""

import pytest
import torch

from hpcfl.updates.attacks import collusion


@pytest.mark.parametrize(
    ("clients", "attackers", "z"),
    [(50, 12, 0.336038), (50, 24, 1.426077), (4, 1, 0), (2, 1, 0)],
)
def test_the_quantile_counts_the_honest_clients_that_a_majority_needs(
    clients, attackers, z
):
    assert collusion.find_quantile(clients, attackers) == pytest.approx(z, abs=1e-6)


def test_alie_stays_within_the_spread_of_honest_updates():
    honest = torch.tensor([[1.0, 0], [3, 0]])
    found = collusion.LittleIsEnough(share=0.5, z=2).forge_one(honest, 1)
    assert found.tolist() == pytest.approx([2 - 2 * 2**0.5, 0])


def test_the_inner_product_with_the_mean_is_negative():
    honest = torch.tensor([[1.0, 0], [3, 2]])
    found = collusion.InnerProduct(share=0.5, factor=0.5).forge_one(honest, 1)
    assert found.tolist() == [-1, -0.5]


def forge_farthest(honest, direction, by_sum):
    kind = collusion.MinSum if by_sum else collusion.MinMax
    return kind(share=0.5, direction=direction).forge_one(honest, 1)


@pytest.mark.parametrize("by_sum", [False, True])
def test_three_honest_updates_on_a_line(by_sum):
    honest = torch.tensor([[1.0, 0], [2, 0], [3, 0]])
    assert forge_farthest(honest, "unit", by_sum).tolist() == [1, 0]


def is_hidden(forged, honest, by_sum):
    """Return whether an update is as close to honest updates as they are to one
    another.
    """
    squares = (honest[:, None] - honest).square().sum(dim=2)
    own = (honest - forged).square().sum(dim=1)
    if by_sum:
        return own.sum() <= squares.sum(dim=1).max()
    return own.max() <= squares.max()


@pytest.mark.parametrize("by_sum", [False, True])
@pytest.mark.parametrize("kind", ["unit", "std", "sign"])
def test_the_largest_step_is_the_one_that_a_search_finds(kind, by_sum):
    generator = torch.Generator().manual_seed(5)
    honest = torch.randn(6, 30, generator=generator, dtype=torch.float64) + 0.3
    mean = honest.mean(dim=0)
    direction = collusion.compute_direction(honest, mean, kind)
    lower, upper = 0.0, 1000.0
    while upper - lower > 1e-5:
        middle = (lower + upper) / 2
        hidden = is_hidden(mean + middle * direction, honest, by_sum)
        lower, upper = (middle, upper) if hidden else (lower, middle)
    found = collusion.find_largest_step(honest, mean, direction, by_sum)
    assert found == pytest.approx(lower, abs=1e-5)


def test_without_a_direction_the_mean_is_sent():
    honest = torch.tensor([[1.0, -2], [-1, 2]])
    assert forge_farthest(honest, "unit", by_sum=False).tolist() == [0, 0]
    alike = torch.ones(3, 2)
    assert forge_farthest(alike, "std", by_sum=True).tolist() == [1, 1]
