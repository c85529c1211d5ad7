"""IFCA: methods-1.md §13. k cluster models; a client trains the model with the least
loss on its training data.
"""

from types import SimpleNamespace

import torch
from by_hand import loss_of

from hpcfl.communication.message import Pool
from hpcfl.methods.ifca import IFCA


def method(**keys):
    return IFCA(**{"name": "ifca", **keys})


def make_inbox(models, clients):
    """Return the inbox of clients that receive all models."""
    return {"models": Pool(models, torch.arange(len(models)).repeat(clients, 1))}


def test_clients_choose_the_first_of_identical_models(make_fleet, cohort, arrived):
    fleet = make_fleet()
    model = fleet.setup.initial()
    own = method(clusters=3)
    uplink = own.update(fleet, own.prepare(fleet, make_inbox(model.repeat(3, 1), 5)))
    assert uplink["cluster"].tensor.tolist() == [[0]] * 5
    server = {"models": model.repeat(3, 1), "chosen": torch.full((5,), -1)}
    method(clusters=3).aggregate(server, cohort(fleet.counts), arrived(uplink))
    assert not torch.equal(server["models"][0], model)
    assert torch.equal(server["models"][1:], model.repeat(2, 1))


def test_chooses_by_the_training_data(make_fleet, rows_of):
    """The authors' code scores the model that is best on test labels. The losses here
    come from a loop over each client's samples.
    """
    fleet = make_fleet()
    models = torch.cat([rows_of(fleet, seed) for seed in range(6)])

    def best(part, client):
        losses = [loss_of(fleet, client, model, part).item() for model in models]
        return losses.index(min(losses))

    chosen = (
        method(clusters=len(models))
        .prepare(fleet, make_inbox(models, 5))["cluster"]
        .tolist()
    )
    assert chosen == [best("train", client) for client in range(5)]
    assert chosen != [best("test", client) for client in range(5)]


def test_a_cluster_is_the_weighted_mean_of_its_clients(cohort, arrived):
    server = {
        "models": torch.tensor([[9.0], [8.0], [7.0]]),
        "chosen": torch.full((4,), -1),
    }
    counts = torch.tensor([[1, 0], [0, 5], [1, 2]])
    trained = torch.tensor([[1.0], [2.0], [4.0]])
    uplink = method(clusters=3).upload(
        SimpleNamespace(samples=counts.sum(dim=1)),
        {"cluster": torch.tensor([2, 0, 2])},
        trained,
    )
    method(clusters=3).aggregate(server, cohort(counts, ids=[0, 2, 3]), arrived(uplink))
    assert server["models"].tolist() == [
        [2.0],
        [8.0],
        [(1 * 1 + 3 * 4) / 4],
    ]  # cluster 1 is empty and does not change
    assert server["chosen"].tolist() == [2, -1, 0, 2]


def test_idle_clients_are_scored_by_the_chosen_cluster_too(make_fleet, rows_of):
    models = torch.cat([rows_of(make_fleet(), seed) for seed in range(3)])
    plays, rests = make_fleet(), make_fleet()
    own = method(clusters=15)
    uplink = own.update(plays, own.prepare(plays, make_inbox(models, 5)))
    chosen = uplink["cluster"].tensor
    own.observe(rests, own.prepare(rests, make_inbox(models, 5)))
    assert len(chosen.unique()) > 1
    rests.score("expected", models[chosen[:, 0]])
    for fleet in (plays, rests):
        assert torch.equal(
            fleet.results.scores["pre"]["loss"],
            rests.results.scores["expected"]["loss"],
        )


def test_clusters_begin_as_different_draws(make_fleet):
    setup = make_fleet().setup
    models = method(clusters=3).server_state(setup)["models"]
    for draw, model in enumerate(models):
        assert torch.equal(model, setup.initial(draw))
