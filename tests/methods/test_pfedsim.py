"""pFedSim: methods-3.md §21."""

import numpy as np
import pytest
import torch

from hpcfl.methods.base import Audience, Cohort
from hpcfl.methods.pfedsim import PFedSim, compute_attention, compute_similarities


def method(**keys):
    return PFedSim(name="pfedsim", **keys)


@pytest.fixture
def setup(make_fleet):
    return make_fleet().setup


def test_weights_by_hand():
    """ψ = (0.9999, ½, 0): −ln(1 − ψ) = 9.210, 0.693, 0, of 9.903: 0.930, 0.070, 0. A
    similarity of 1 has the weight of the client itself.
    """
    alike = torch.tensor([[0.0, 0.5, 0], [0.5, 0, 1], [0, 1, 0]]).double()
    found = compute_attention(alike)
    assert [round(weight, 3) for weight in found[0].tolist()] == [0.930, 0.070, 0]
    assert found[0, 2] == 0 and found[2].tolist() == [0, 0.5, 0.5]


def test_similarity_by_hand():
    """Cosines 1 and 0 of two classes' rows give ½, and −1 and 1 give 0; lengths and
    zero rows have no effect.
    """
    heads = torch.tensor(
        [
            [[1.0, 0], [0, 1]],
            [[3, 0], [5, 0]],
            [[-1, 0], [0, 2]],
            [[0, 0], [0, 0]],
        ]
    )
    found = compute_similarities(heads)
    expected = [[0, 0.5, 0, 0], [0.5, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert found.tolist() == expected


def test_clients_with_orthogonal_heads_keep_their_bodies(setup, rows_of):
    models = torch.randn(5, setup.layout.width)
    server = {"models": models, "similarity": torch.zeros(5, 5).double()}
    message = method().send(server, Audience(np.array([1, 4]), setup, 3))
    body = setup.layout.columns("body")
    assert torch.equal(message["body"], models[[1, 4], body])
    assert torch.equal(message["head"], models[[1, 4], body.stop :])


def test_only_pairs_that_meet_are_updated(setup):
    """The pairs are clients 1 and 3; similarities and models of other clients do not
    change.
    """
    models = torch.zeros(5, setup.layout.width)
    before = torch.full((5, 5), 0.25).double()
    server = {
        "model": models[0],
        "models": models,
        "similarity": before,
    }
    ids = np.array([1, 3])
    uploads = torch.randn(2, setup.layout.width)
    cohort = Cohort(ids, setup.counts[ids], setup, setup.rounds)
    method().aggregate(server, cohort, {"model": uploads})
    heads = uploads[:, setup.layout.columns("head.weight")].view(2, 4, -1)
    met = torch.zeros(5, 5, dtype=torch.bool)
    met[1, 1] = met[1, 3] = met[3, 1] = met[3, 3] = True
    assert (server["similarity"][~met] == 0.25).all()
    assert server["similarity"][1, 3] == compute_similarities(heads)[0, 1]
    assert torch.equal(server["models"][ids], uploads)
    assert not server["models"][[0, 2, 4]].any() and (before == 0.25).all()
