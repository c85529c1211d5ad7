"""MR-MTL: methods-3.md §20."""

from typing import ClassVar

import pytest
import torch
from by_hand import Quadratics

from hpcfl.methods.mr_mtl import MRMTL


class Two(Quadratics, MRMTL):
    """MR-MTL on f_i(θ) = ½‖θ − c_i‖² with c = (1, 5), from 0."""

    centres: ClassVar = (1.0, 5.0)

    def client_state(self, setup):
        return {"model": torch.zeros(setup.layout.width)}


def test_quadratics_by_hand(federate):
    """With λ = 1 the minimum of ½(θ − c_i)² + ½(θ − w̄)² is (c_i + w̄)/2. One step of
    rate ½ reaches it from any start: w_i = (0.5, 2.5) and w̄ = 1.5; then (1.25, 3.25)
    and 2.25, then (1.625, 3.625) and 2.625; in the limit w̄ = 3, w = (2, 4).
    """
    for rounds, mean, own in (
        (1, 1.5, [0.5, 2.5]),
        (2, 2.25, [1.25, 3.25]),
        (3, 2.625, [1.625, 3.625]),
    ):
        played = federate(
            {"name": "test_mr_mtl:Two", "lam": 1.0},
            [[2, 1, 0, 0], [0, 0, 2, 1]],
            rounds=rounds,
            training={"lr": 0.5},
        )
        assert (played.server["model"] == mean).all()
        assert (played.clients["model"] == torch.tensor(own)[:, None]).all()


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_the_anchor_is_the_mean_of_all_models(federate, weights, fraction):
    for rounds in (1, 3):
        played = federate(
            {"name": "mr-mtl", "weights": weights},
            rounds=rounds,
            participation={"fraction": fraction},
        )
        counts = played.prepared.setup.samples
        shares = counts if weights == "samples" else torch.ones(5).double()
        mean = (shares / shares.sum()) @ played.clients["model"].double()
        torch.testing.assert_close(played.server["model"], mean.float())
