"""Synthetic runs in which every number is known."""

import made_up
import numpy as np
import pytest
from made_up import make_run
from recorded import sparse

from hpcfl.experiment import config
from hpcfl.storage.results import Results

__all__ = ["make_run"]
OWN = np.array([0.2, 0.4, 0.9])  # of three clients with ten test samples each
NAN = np.nan


@pytest.fixture
def made_runs(tmp_path):
    """Return ``made_runs(method=[numbers by seed])``, which makes runs of two rounds; a
    number is added in round 2. It returns all runs of a test in the order of their
    names.
    """
    made = {}

    def make(finished=True, partitions=1, keys=None, **methods):
        rounds = 2 + finished
        for method, numbers in methods.items():
            for seed, number in enumerate(numbers):
                table = {"rounds": 2, "seed": seed, "method": {"name": method}}
                counts = np.full((3, 2), 5) + seed % partitions * np.array([1, -1])
                own = np.array([OWN, OWN + number, 3 * [NAN]])
                values = {
                    "pre/weighted": own.mean(axis=1),
                    "pre/mean": own.mean(axis=1),
                    "seconds/round": np.array([2.0, 2.0, 1.0]),
                    "floats_down": np.full(3, 100.0),
                    "clients/floats_up": np.array([[50, NAN, 50]] * 2 + [3 * [NAN]]),
                    "clients/pre/correct": 10 * own,
                    "clients/pre/total": np.full((3, 3), 10.0),
                    "final": np.array([0, 0, 1]),
                }
                results = Results(
                    {"primary": "pre"},
                    {"train_counts": counts, "test_counts": counts},
                    np.arange(1, rounds + 1),
                    sparse({name: series[:rounds] for name, series in values.items()}),
                )
                name = f"{method},seed={seed}"
                resolved = config.parse(table | (keys or {})).resolved()
                made[name] = made_up.summed_up(
                    tmp_path / name, resolved, results, finished
                )
        return [made[name] for name in sorted(made)]

    return make
