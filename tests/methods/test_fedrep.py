"""FedRep: methods-2.md §2."""

import tiny
import torch
from torch import nn

from hpcfl.clients import training
from hpcfl.methods.fedrep import FedRep


class Normed(nn.Module):
    """A body with batch norm, named as ``model.name = 'test_fedrep:Normed'``."""

    def __init__(self, shape, classes, *, hidden=(6,)):
        super().__init__()
        self.fc, self.norm = nn.Linear(shape[0], hidden[0]), nn.BatchNorm1d(hidden[0])
        self.head = nn.Linear(hidden[0], classes)

    def features(self, x):
        return self.norm(self.fc(x)).relu()

    def forward(self, x):
        return self.head(self.features(x))


def phases(federate, monkeypatch, **sections):
    """Return the start and the result of every call of ``train`` and ``train_by`` in a
    federation.
    """
    calls, original = [], training.train

    def train(task, resources, start):
        ended = original(task, resources, start)
        calls.append((start.rows.clone(), ended.rows.clone()))
        return ended

    monkeypatch.setattr(training, "train", train)
    played = federate(**sections)
    monkeypatch.undo()
    return played, calls


def test_first_only_the_head_moves_then_only_the_body(federate, monkeypatch):
    played, calls = phases(
        federate, monkeypatch, method={"name": "fedrep", "head_epochs": 2}, rounds=2
    )
    body, head = (
        played.prepared.setup.layout.columns(group) for group in ("body", "head")
    )
    for (start, fitted), (again, ended) in zip(calls[::2], calls[1::2], strict=True):
        assert torch.equal(fitted, again)
        assert torch.equal(start[:, body], fitted[:, body])
        assert torch.equal(fitted[:, head], ended[:, head])
        assert (start[:, head] != fitted[:, head]).any(dim=1).all()
        assert (fitted[:, body] != ended[:, body]).any(dim=1).all()
    assert torch.equal(played.clients["head"], calls[-1][1][:, head])


def test_body_statistics_do_not_change_in_the_head_phase(make_fleet):
    """The only step of the body's phase uses the received body, so its statistics do
    not depend on the length of the head's phase.
    """
    after = []
    for head_epochs in (0, 3):
        fleet = make_fleet(
            tiny.COUNTS[:2],
            model={"name": "test_fedrep:Normed"},
            batch_size=100,
        )
        before = fleet.state["buffers.model"].clone()
        method = FedRep(name="fedrep", head_epochs=head_epochs)
        method.local_train(fleet, fleet.setup.initial(), {})
        after.append(fleet.state["buffers.model"])
    assert torch.equal(after[0], after[1])
    assert not torch.equal(after[0], before)


def test_ala_blends_the_upper_layer_of_the_body(federate, monkeypatch):
    """These are the columns between the lower body and the head. The client's head and
    the received lower body do not change.
    """
    played, calls = phases(
        federate,
        monkeypatch,
        method={"name": "fedrep", "ala": True},
        rounds=2,
        model={"name": "mlp", "hidden": [7, 6]},
        counts=tiny.FEW,
    )
    layout = played.prepared.setup.layout
    neck, head = layout.columns("neck"), layout.columns("head")
    assert neck == layout.columns("hidden2")
    assert played.clients["ala.weights"].shape == (5, neck.stop - neck.start)
    received, blended = calls[3]  # round 2: ala, head, body
    assert torch.equal(blended[:, : neck.start], received[:, : neck.start])
    assert torch.equal(blended[:, head], received[:, head])
    assert (blended[:, neck] != received[:, neck]).any(dim=1).all()
    assert torch.equal(played.clients["model"], calls[5][1])


def test_each_round_has_two_phases_with_all_their_epochs(
    federate, monkeypatch, make_fleet
):
    """τ epochs on the head and then all epochs of the experiment on the body; each
    round has two phases.
    """
    assert len(phases(federate, monkeypatch, method="fedrep", rounds=2)[1]) == 4
    fleet = make_fleet([[8, 0, 0, 0]], batch_size=4, epochs=3)
    FedRep(name="fedrep", head_epochs=2).local_train(fleet, fleet.setup.initial(), {})
    assert fleet.results.sample_gradients.tolist() == [8 * (2 + 3)]
