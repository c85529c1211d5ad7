"""FedAdam: Reddi et al., Algorithm 2; and FedYogi, which differs only in v."""

import pytest
import torch
from every_method import kind


@pytest.mark.parametrize(
    ("name", "second", "later"),
    [("fedadam", 1.1875, 0.890625), ("fedyogi", 1.25, 1.25)],
)
def test_two_rounds_by_hand(name, second, later):
    """β₁ = 0.5, β₂ = 0.75, τ = 0.5, η = 0.1, w = 1, so v = 0.25 initially.

    Round 1, mean model 3: Δ = 2, m = 0.5·2 = 1, FedAdam's v = 0.75·0.25 + 0.25·4 =
    1.1875, FedYogi's 0.25 + 0.25·4, w = 1 + 0.1·1/(√v + 0.5). Round 2, mean model w: Δ
    = 0, m = 0.5, FedAdam's v = 0.890625, and FedYogi's v is unchanged.
    """
    method = kind(name)(name=name, beta1=0.5, beta2=0.75, tau=0.5, server_lr=0.1)
    server = {
        "model": torch.tensor([1.0]),
        "first": torch.zeros(1),
        "second": torch.tensor([0.25]),
    }
    first = 1 + 0.1 / (second**0.5 + 0.5)
    again = first + 0.1 * 0.5 / (later**0.5 + 0.5)
    for mean, expected in ((3, [first, 1, second]), (first, [again, 0.5, later])):
        method.aggregate(server, None, {"model": torch.tensor([mean])})
        assert torch.cat(list(server.values())).tolist() == pytest.approx(expected)
