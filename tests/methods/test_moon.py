"""MOON: Li et al., CVPR 2021, equation (3)."""

import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from hpcfl.clients.losses import Batch, Lane
from hpcfl.methods.moon import Moon
from hpcfl.models.mlp import MLP
from hpcfl.rows.layout import lay_out_parameters, make_row


def test_the_loss_is_the_formula():
    """The formula is −log(e^a/(e^a + e^b)), where a, b are cosines of features divided
    by τ.
    """
    own, received, last = (MLP((5,), 4, hidden=(6,)) for _ in range(3))
    layout = lay_out_parameters(own)
    batch = Batch(torch.randn(8, 5), torch.arange(8) % 4)
    a, b = (
        cosine_similarity(own.features(batch.x), other.features(batch.x)) / 0.25
        for other in (received, last)
    )
    contrast = -(a.exp() / (a.exp() + b.exp())).log().mean()
    lane = Lane(received=make_row(layout, received), last=make_row(layout, last))
    torch.testing.assert_close(
        Moon(name="moon", mu=2.0, tau=0.25).loss(own, batch, lane),
        cross_entropy(own(batch.x), batch.y) + 2 * contrast,
    )


def test_a_client_remembers_its_model_of_its_last_round(federate):
    one = federate("moon", rounds=1)
    alone = federate("moon", [[6, 3, 2, 1]], rounds=2)
    torch.testing.assert_close(alone.clients["last"][0], alone.server["model"])
    assert len(one.clients["last"].unique(dim=0)) == 5
