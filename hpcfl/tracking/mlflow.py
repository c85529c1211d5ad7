"""MLflow: a run in the store of MLFLOW_TRACKING_URI, or in the run's folder without
this variable.

``mlflow ui --backend-store-uri sqlite:///runs/NAME/mlflow/mlflow.db`` shows the latter.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcfl.tracking.base import ID, Tracker, find_id

EXPERIMENT = "hpcfl"


class MLflow(Tracker):
    package = "mlflow"

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        key = find_id(folder)
        for old in folder.iterdir():
            if old.is_dir():
                shutil.rmtree(old)
            elif old.name != ID:
                old.unlink()
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            address = f"sqlite:///{folder.resolve()}/mlflow.db"
        self._client = MlflowClient(tracking_uri=address)
        found = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = (
            found.experiment_id
            if found is not None
            else self._client.create_experiment(EXPERIMENT)
        )
        # A resumed run replaces its earlier part.
        filter_string = f"tags.`hpcfl.run` = '{key}'"
        for old in self._client.search_runs([experiment], filter_string):
            self._client.delete_run(old.info.run_id)
        tags = {"hpcfl.run": key, "hpcfl.folder": str(folder.resolve())}
        run = self._client.create_run(experiment, run_name=config["name"], tags=tags)
        self._run = run.info.run_id
        for section, keys in config.items():
            self._client.log_param(self._run, section, str(keys)[:500])

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, number, 0, round) for name, number in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


plugin = MLflow
