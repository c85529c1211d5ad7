"""MLflow's runs, in a store of files of the small package."""

import shutil

import pytest

from hpcfl.tracking.mlflow import MLflow

pytestmark = [
    pytest.mark.slow,
    # warnings of mlflow's code and of packages that it imports
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Return a client of a new store, which runs use."""
    mlflow = pytest.importorskip("mlflow")  # takes long to import
    address = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return mlflow.MlflowClient(tracking_uri=address)


def test_a_new_run_in_the_same_place_keeps_the_earlier_one(tmp_path, client):
    """It may also be the same place on another machine."""
    folder = tmp_path / "run" / "mlflow"
    for name in ("first", "second"):
        folder.parent.mkdir()
        MLflow(folder, {"name": name})
        shutil.rmtree(folder.parent)
    experiment = client.get_experiment_by_name("hpcfl")
    assert len(client.search_runs([experiment.experiment_id])) == 2


def test_a_run_has_each_round_once_also_after_an_interruption(interrupted, client):
    interrupted("mlflow")
    [experiment] = client.search_experiments(filter_string="name = 'hpcfl'")
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and found.data.params["rounds"] == "4"
    history = client.get_metric_history(found.info.run_id, "pre/weighted")
    assert [metric.step for metric in history] == [1, 2, 3, 4, 5]
