"""Folders of runs, made by hand: what they say is known to the last number."""

import json

import made_up
import numpy as np
import pytest
from made_up import make_run

from hpcfl.experiment import config, experiment_file
from hpcfl.storage.metrics import MetricsWriter
from hpcfl.storage.run_folder import FORMAT
from hpcfl.trained.loading import list_runs

__all__ = ["make_run"]
OWN = np.array([0.2, 0.4, 0.9])  # of three clients with ten test samples each


@pytest.fixture
def made_runs(tmp_path):
    """``made_runs(method=[numbers by seed])``: runs of two rounds; a number is added in
    round 2.
    """

    def make(finished=True, partitions=1, keys=None, **methods):
        for method, numbers in methods.items():
            for seed, number in enumerate(numbers):
                table = {"rounds": 2, "seed": seed, "method": {"name": method}}
                resolved = config.parse(table | (keys or {})).resolved()
                counts = np.full((3, 2), 5) + seed % partitions * np.array([1, -1])
                described = {
                    "run": experiment_file.fingerprint(resolved),
                    "config": resolved,
                    "primary": "pre",
                }
                folder = tmp_path / f"{method},seed={seed}"
                parts = {"train_counts": counts, "test_counts": counts}
                writer = MetricsWriter(folder, described, parts)
                for round, own in ((1, OWN), (2, OWN + number)):
                    recorded = {
                        "pre/weighted": own.mean(),
                        "pre/mean": own.mean(),
                        "seconds/round": 2.0,
                        "floats_down": 100.0,
                        "clients/floats_up": np.array([50.0, np.nan, 50.0]),
                        "clients/pre/correct": 10 * own,
                        "clients/pre/total": np.full(3, 10.0),
                    }
                    writer.record(round, recorded)
                if finished:
                    last = {"final": 1, "floats_down": 100.0, "seconds/round": 1.0}
                    writer.record(3, last)
                    writer.merge()
                content = {"format": FORMAT, "config": resolved}
                (folder / "run.json").write_text(json.dumps(content))
        # in arrays that a test may change
        return [
            made_up.changed(run, dict(run.results.values))
            for run in list_runs(tmp_path)
        ]

    return make
