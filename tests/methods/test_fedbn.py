"""FedBN: Li et al., ICLR 2021."""

import pytest
import torch

from hpcfl.methods.fedbn import FedBN

NORMED = {"model": {"name": "test_fedrep:Normed"}}


def columns(played):
    """Return a mask of batch norm's columns, by their name."""
    layout = played.prepared.setup.layout
    mask = torch.zeros(layout.width, dtype=torch.bool)
    mask[layout.columns("norm")] = True
    return mask


def test_batch_norm_stays_with_its_client(federate):
    played = federate("fedbn", rounds=2, **NORMED)
    own, initial = columns(played), played.prepared.setup.initial()
    assert torch.equal(played.prepared.setup.layout.batch_norm, own.nonzero()[:, 0])
    assert torch.equal(played.server["model"][own], initial[own])
    assert (played.server["model"][~own] != initial[~own]).any()
    assert len(played.clients["norm"].unique(dim=0)) == 5
    assert len(played.clients["buffers.model"].unique(dim=0)) == 5
    assert (played.floats == int((~own).sum())).all()


def test_an_upload_does_not_depend_on_batch_norm(make_fleet, rows_of, arrived):
    """It would otherwise count in the norms and distances of ``[privacy]`` and of
    aggregation rules.
    """
    fleet = make_fleet(**NORMED)
    trained = rows_of(fleet)
    other = trained.index_fill(1, fleet.layout.batch_norm, 9.0)
    uploads = [
        arrived(FedBN(name="fedbn").upload(fleet, {}, rows)).values()
        for rows in (trained, other)
    ]
    assert all(map(torch.equal, *uploads))


@pytest.mark.slow
def test_the_first_rounds_other_layers_are_fedavgs(federate):
    """All clients start from the same batch norm, so the averages are equal."""
    fedbn, fedavg = (federate(name, rounds=1, **NORMED) for name in ("fedbn", "fedavg"))
    shared = ~columns(fedbn)
    assert torch.equal(fedbn.server["model"][shared], fedavg.server["model"][shared])


def test_without_batch_norm_it_is_fedavg_with_a_note(equal_runs):
    played, _ = equal_runs("fedbn", "fedavg", columns=("pre",))
    assert any("FedAvg" in note for note in played.prepared.notes)
