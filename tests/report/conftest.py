"""Folders of runs, made by hand: what they say is known to the last number."""

import json
from pathlib import Path

import numpy as np
import pytest

from hpcfl.experiment import config
from hpcfl.storage.metrics import MetricsWriter
from hpcfl.storage.run_folder import FORMAT

COUNTS = np.array([[8, 0, 1], [0, 4, 0]])


def accuracies(name: str, weighted: float) -> dict[str, float]:
    return {
        f"{name}/weighted": weighted,
        f"{name}/mean": weighted - 0.01,
        f"{name}/std": 0.05,
        f"{name}/worst_tenth": weighted - 0.2,
        f"{name}/clients": 2.0,
    }


def recorded(
    pre: float, post: float | None, seconds: float
) -> dict[str, float | np.ndarray]:
    values = {
        **accuracies("pre", pre),
        "seconds/round": seconds,
        "floats_down": 30.0,
        "clients/floats_up": np.array([10.0, np.nan]),
    }
    return values if post is None else {**values, **accuracies("post", post)}


@pytest.fixture
def make_run(tmp_path: Path):
    """``make_run(name, method, rounds=…)``: a run's folder, three rounds played and
    then the start models scored.
    """

    def make(
        name: str = "run",
        method: str = "fedavg",
        rounds: int = 3,
        primary: str = "pre",
        finished: bool = True,
        scale: float = 1.0,
        clients: float = 2.0,
        **evaluation: str,
    ) -> Path:
        folder = tmp_path / name
        resolved = config.parse(
            {"rounds": rounds, "method": {"name": method}, "evaluation": evaluation}
        ).resolved()
        writer = MetricsWriter(
            folder,
            {
                "run": config.fingerprint(resolved),
                "config": resolved,
                "primary": primary,
            },
            {"train_counts": COUNTS},
        )
        writer.record(1, recorded(0.25 * scale, 0.5 * scale, seconds=100.0))
        best = {
            **recorded(0.75 * scale, 0.625 * scale, seconds=1.0),
            "pre/clients": clients,
        }
        writer.record(2, best)
        writer.record(3, recorded(0.5 * scale, 0.875 * scale, seconds=2.0))
        if finished:
            writer.record(
                4,
                {
                    **recorded(0.625 * scale, None, seconds=50.0),
                    "floats_down": 30.0,
                    "final": 1,
                },
            )
            writer.merge()
        (folder / "run.json").write_text(
            json.dumps({"format": FORMAT, "config": resolved})
        )
        return folder

    return make
