"""A user's score is one class in one file. It is recorded, can select the best round,
and is displayed as a built-in one.
"""

import json
import math
import sys

import h5py
import numpy as np
import pytest
from playing import call

import hpcfl
from hpcfl.trained import loading

NAME = "own_scores:Surprise"
EXPERIMENT = f"""
name = "own"
rounds = 2
partition = {{ scheme = "iid", clients = 3 }}
model = {{ name = "mlp", hidden = [] }}
method = {{ name = "fedavg" }}
training = {{ batch_size = 200, lr = 0.5 }}
evaluation = {{ metric = "{NAME}", scores = ["macro-f1", "loss"] }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run the experiment above and return its results."""
    file = tmp_path_factory.mktemp("own") / "own.toml"
    file.write_text(EXPERIMENT)
    assert call("run", file, "--out", file.parent / "own") == 0
    return file.parent / "own"


@pytest.fixture
def unimportable(monkeypatch):
    """Make the user's module unavailable, as for readers of results."""
    monkeypatch.setitem(sys.modules, "own_scores", None)


@pytest.mark.slow
def test_the_metrics_file_contains_the_score_and_its_description(folder):
    with h5py.File(folder / "metrics.h5") as file:
        clients, losses, total = (
            file[f"values/clients/pre/{name}"][:].reshape(-1, 3)  # all, in each round
            for name in (NAME, "loss", "total")
        )
        mean, std, worst = (
            file[f"values/pre/{NAME}{end}"][:] for end in ("", "_std", "_worst_tenth")
        )
        described = json.loads(file.attrs["scores"])
    assert np.allclose(clients, losses / total / math.log(2), rtol=1e-5)
    assert np.allclose(mean, clients.mean(axis=1))
    assert np.allclose(std, clients.std(axis=1))
    # one of three; a large surprise is bad
    assert np.allclose(worst, clients.max(axis=1))
    assert described[NAME] == {
        "unit": "bits",
        "better": "down",
        "recorded": {
            "mean": NAME,
            "std": f"{NAME}_std",
            "worst_tenth": f"{NAME}_worst_tenth",
        },
    }
    assert list(described) == ["accuracy", "loss", "macro_f1", NAME]


@pytest.mark.slow
def test_a_users_score_selects_the_best_round(folder, unimportable):
    run = hpcfl.load(folder)
    recorded = run.results.values[f"pre/{NAME}"]
    assert run.summary.best["pre"] == recorded.min()  # lower is better
    assert (run.metric, run.measure.unit) == (NAME, "bits")
    assert run.accuracy("pre").tolist() == recorded.tolist()


def test_show_prints_it(folder, unimportable, printed):
    assert call("show", "--json", folder) == 0
    shown = json.loads(printed())
    values = loading.load_run(folder).results.values
    best = int(np.argmin(values[f"pre/{NAME}"]))
    assert shown["best"]["pre"] == shown["scores"][NAME] == values[f"pre/{NAME}"][best]
    assert shown["scores"]["macro_f1"] == values["pre/macro_f1"][best]
    assert call("show", folder) == 0
    output = printed()
    assert NAME in output
    assert f"{values[f'pre/{NAME}'][best]:.4g}" in output
    assert "in bits" in output


@pytest.mark.slow
@pytest.mark.parametrize("metric", [NAME, f"{NAME}/worst_tenth", f"post/{NAME}"])
def test_table_takes_it_as_a_metric(folder, unimportable, printed, metric):
    assert call("table", folder, "--format", "csv", "--metric", metric) == 0
    number = float(printed().splitlines()[1].split(",")[4])
    run = loading.load_run(folder)
    names = {NAME: f"pre/{NAME}", f"{NAME}/worst_tenth": f"pre/{NAME}_worst_tenth"}
    values = run.results.values[names.get(metric, metric)]
    until_best = values[run.results.rounds <= run.summary.best["round"]]
    assert number == pytest.approx(until_best[np.isfinite(until_best)][-1])


def test_table_has_no_other_scores(folder, unimportable, printed_errors):
    assert call("table", folder, "--metric", "own_scores:F1") == 2
    assert "; did you mean '" in printed_errors()


def test_check_lists_scores_and_the_criterion_of_the_best(tmp_path, printed):
    (tmp_path / "own.toml").write_text(EXPERIMENT)
    assert call("check", tmp_path / "own.toml") == 0
    shown = printed().splitlines()
    (line,) = (line for line in shown if line.startswith("scores: "))
    assert line.startswith(f"scores: accuracy, loss, macro_f1, {NAME};")
    assert line.endswith(f" lowest {NAME}")
    assert 'scores = [ "macro_f1", "loss",' in " ".join(" ".join(shown).split())
