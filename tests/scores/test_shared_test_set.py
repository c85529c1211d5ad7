"""FedNH's personalised accuracies on a test set that all clients share: protocols.md
E2.
"""

import pytest
import torch
from methods.by_hand import build_model
from playing import play_on
from refusals import expect_refusal

from hpcfl.communication.communicator import OneProcess
from hpcfl.scores.built_in import PML, PMV


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (PML(), 0.75 * 0.8 + 0.25 * 0.5),  # recalls weighted by share
        (PMV(), (0.8 + 0.5) / 2),  # mean recall of the client's classes
    ],
)
def test_personalised_accuracies_are_the_papers(score, expected):
    """Ten test samples of each class."""
    correct = torch.tensor([[8.0, 5.0, 0.0], [2.0, 2.0, 10.0]])
    sums = torch.cat([correct, torch.full((2, 3), 10.0)], dim=1).double()
    trained = torch.tensor([[30.0, 10.0, 0.0], [0.0, 0.0, 7.0]]).double()
    assert score.number(sums, trained).tolist() == pytest.approx([expected, 1.0])


@pytest.fixture
def spiral(tmp_path):
    """Return ``spiral(method, …)``, which runs two rounds on the spiral with global
    testing.
    """

    def run(method, scheme="dirichlet-min", **evaluated):
        table = {
            "rounds": 2,
            "data": {"dataset": "spiral-imbalanced"},
            "partition": {"scheme": scheme, "clients": 6},
            "model": {"name": "mlp", "hidden": [16]},
            "method": {"name": method} if isinstance(method, str) else method,
            "training": {"batch_size": 50, "lr": 0.1},
            "evaluation": evaluated,
        }
        return play_on(OneProcess(), tmp_path, table)

    return run


def test_a_global_test_set_gives_personalised_accuracies(spiral):
    played = spiral("local", metric="pm_l")
    prepared, values = played.prepared, played.values
    assert prepared.data.split.has_global_test
    assert prepared.data.test_counts.tolist() == [[100] * 6] * 6
    models = played.clients["model"]
    samples = prepared.resources.samples
    x, y = samples.take(samples.test[0])
    for client, row in enumerate(models):
        right = build_model(prepared.setup, row)(x).argmax(1) == y
        recall = torch.stack([right[y == c].double().mean() for c in range(6)])
        share = prepared.setup.counts[client] / prepared.setup.counts[client].sum()
        assert values["clients/post/pm_v"][-2, client] == pytest.approx(
            recall[share > 0].mean().item()
        )
        assert values["clients/post/pm_l"][-2, client] == pytest.approx(
            (share * recall).sum().item()
        )
    assert values["post/pm_l"][-2] == pytest.approx(
        values["clients/post/pm_l"][-2].mean()
    )
    assert values["post/pm_l_std"][-2] == pytest.approx(
        values["clients/post/pm_l"][-2].std()
    )


def test_a_shared_model_is_scored_once_for_all(spiral, monkeypatch):
    from hpcfl.clients import scoring

    counted, real = [], scoring.score_chunk
    monkeypatch.setattr(
        scoring,
        "score_chunk",
        lambda blocks, clients, *given: (
            counted.append(clients),
            real(blocks, clients, *given),
        )[1],
    )
    values = spiral("fedavg").values
    # global model, trained models; at the end the last global model
    assert counted == [1, 6, 1, 6, 1]
    for name in ("correct", "loss", "pm_v"):
        column = values[f"clients/global/{name}"][-1]
        assert len(column) == 6 and (name == "pm_v" or len(set(column)) == 1)
    assert (
        values["global/weighted"][-1] == values["clients/global/correct"][-1, 0] / 600
    )


def test_personalised_accuracy_needs_a_global_test_set(spiral):
    for key, asked in (
        ("metric", {"metric": "pm_v"}),
        ("scores", {"scores": ["macro_f1", "pm_v"]}),
    ):
        words = rf"evaluation\.{key} = 'pm_v' .*partition\.scheme = .*'iid'"
        with expect_refusal(words):
            spiral("fedavg", scheme="iid", **asked)


def test_local_test_sets_have_no_personalised_accuracies(spiral):
    values = spiral("fedavg", scheme="iid").values
    assert "post/weighted" in values and not [name for name in values if "pm_" in name]
