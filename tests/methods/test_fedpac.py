"""FedPAC: methods-3.md §4."""

from types import SimpleNamespace

import pytest
import torch

from hpcfl.methods import fedpac
from hpcfl.methods.fedpac import (
    FedPAC,
    build_objective,
    minimise_on_simplex,
    solve_collaboration,
)


@pytest.fixture
def some():
    """Return H [5, 6] and v [5] of five clients."""
    generator = torch.Generator().manual_seed(5)
    means = torch.randn(5, 6, generator=generator)
    variances = torch.rand(5, generator=generator).double()
    return means, variances


def test_two_clients_by_hand():
    """v = 1, ‖H₁ − H₂‖² = 2: α² + (1 − α)² + 2(1 − α)² has its minimum at α = ¾, in
    general at (v + D)/(2v + D).
    """
    means = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = solve_collaboration(means, torch.ones(2).double())
    expected = torch.tensor([[0.75, 0.25], [0.25, 0.75]]).double()
    torch.testing.assert_close(found, expected)
    found = solve_collaboration(3 * means, torch.full((2,), 0.5).double())
    assert found[0, 0].item() == pytest.approx((0.5 + 18) / (1 + 18))


def test_the_matrix_is_that_of_the_definition(some):
    """The definition is diag(v) + B_i B_iᵀ with rows H_i − H_j."""
    means, variances = some
    means = means.double()
    for client in range(5):
        gaps = means[client] - means
        expected = variances.diag() + gaps @ gaps.T
        found = build_objective(means @ means.T, variances, client)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_the_solver_ends_at_the_minimum(some, monkeypatch, scale):
    """If α_j > 0, the slope (Pα)_j is the smallest of all, so no change of weights
    reduces the objective.
    """
    monkeypatch.setattr(fedpac, "LEAST_WEIGHT", 0.0)
    means, variances = some
    products = (means @ means.T).double()
    for client in range(5):
        matrix = build_objective(products, 3 * variances, client)
        weights = minimise_on_simplex(scale * matrix)
        slopes = matrix @ weights
        used = weights > 1e-9
        assert used.sum() > 1
        torch.testing.assert_close(slopes[used], slopes.amin().expand(used.sum()))
    assert minimise_on_simplex(torch.zeros(1, 1).double()).tolist() == [1]


def test_mean_and_variance_by_hand():
    """Features 1 and 3 of class 0 and 4 of class 1: π = (⅔, ⅓), μ = (2, 4), s = (5,
    16).

    H = (4/3, 4/3), and v = (⅔·5 + ⅓·16 − 2·16/9)/3 = 46/27. A client with one sample
    has no variance.
    """
    moments = torch.tensor([[[2.0, 5.0], [4.0, 16.0]], [[0.0, 0.0], [2.0, 4.0]]])
    counts = torch.tensor([[2.0, 1.0], [0.0, 1.0]]).double()
    fleet = SimpleNamespace(
        class_means=lambda rows, function: moments,
        counts=counts,
        samples=counts.sum(dim=1),
    )
    found = FedPAC(name="fedpac").compute_statistics(fleet, None)
    expected = torch.tensor([[4 / 3, 4 / 3], [0, 2]])
    torch.testing.assert_close(found["means"].tensor, expected)
    assert found["means"].floats.tolist() == [2, 1]
    variances = torch.tensor([[46 / 27], [0]]).double()
    torch.testing.assert_close(found["variance"], variances)


def test_prototypes_and_heads_of_the_cohort_alone(make_fleet, cohort):
    """Only client 1 has class 2, and no client class 3; for class 1 the mean is (3·1 +
    1·5)/4 = 2.

    The heads of the two participants are mixed by (¾, ¼); the third client keeps its
    head.
    """
    method = FedPAC(name="fedpac")
    setup = make_fleet().setup
    private = method.find_private_columns(setup.layout)
    width = private.stop - private.start
    server = method.server_state(setup)
    server["prototypes"] = torch.full((4, 6), -1.0)
    clients = cohort([[1, 3, 0, 0], [0, 1, 2, 0]], setup.layout, [0, 2])
    rows = torch.tensor([[1.0], [5.0]]).expand(2, width)
    message = {
        "body": torch.zeros(private.start),
        "prototypes": torch.tensor([7.0, 2.0, 5.0, torch.nan])[:, None].expand(4, 6),
        "head": rows,
        "means": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "variance": torch.ones(2, 1).double(),
    }
    method.aggregate(server, clients, message)
    assert server["prototypes"][:, 0].tolist() == [7, 2, 5, -1]
    assert server["present"].tolist() == [True, True, True, False]
    assert server["heads"][0].eq(2).all() and server["heads"][2].eq(4).all()
    for absent in (1, 3, 4):
        assert torch.equal(server["heads"][absent], setup.initial()[private])
