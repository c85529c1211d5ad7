"""MLflow's runs, in a store of files of the small package."""

import pytest

pytestmark = [
    pytest.mark.slow,
    # warnings of mlflow's code and of packages that it imports
    pytest.mark.filterwarnings("ignore"),
]


def test_a_run_has_each_round_once_also_after_an_interruption(
    tmp_path, interrupted, monkeypatch
):
    mlflow = pytest.importorskip("mlflow")  # takes long to import
    address = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    interrupted("mlflow")
    client = mlflow.MlflowClient(tracking_uri=address)
    [experiment] = client.search_experiments(filter_string="name = 'hpcfl'")
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and found.data.params["rounds"] == "4"
    history = client.get_metric_history(found.info.run_id, "pre/weighted")
    assert [metric.step for metric in history] == [1, 2, 3, 4, 5]
