"""Runs with results made up: nothing is trained, and every number is known."""

from pathlib import Path

import numpy as np

from hpcfl.report.summary import Run, Summary
from hpcfl.storage.life import Life, Stage
from hpcfl.storage.results import Results


def run(method: str = "fedavg",
        seed: int = 0, accuracy: tuple[float, ...] = (0.5, 0.75, 0.6), finished: bool = True,
        dataset: str = "digits", clients: float = 5.0, **method_keys: object) -> Run:
    """A run whose best round is that of its highest accuracy."""
    rounds = np.arange(1, len(accuracy) + 1)
    values = {"pre/weighted": np.array(accuracy), "pre/mean": np.array(accuracy) - 0.1,
              "seconds/round": rounds / 10,
              "pre/clients": np.full(len(rounds), clients), "clients/floats_up": np.zeros((len(rounds), 2))}
    best = int(np.argmax(accuracy))
    summary = Summary(method, dataset, len(rounds), finished, {"round": best + 1, "pre": accuracy[best]},
                      None, None, None, None, None, None, "finished" if finished else "stopped", [])
    life = Life(Stage.FINISHED if finished else Stage.PLAYING, 3, len(rounds), None, [], False, None)
    config = {"name": f"{method}-{seed}", "seed": seed, "rounds": 3,
              "data": {"dataset": dataset, "root": None},
              "partition": {"scheme": "iid", "seed": 1}, "method": {"name": method, **method_keys},
              "runtime": {"device": "cpu"}}
    return Run(Path(f"runs/{method}-{seed}"), summary, config, Results(rounds=rounds, values=values), "pre",
               "weighted", life)


def seeds(method: str, *best: float, **keys: object) -> list[Run]:
    return [run(method, seed, (0.1, one), **keys) for seed, one in enumerate(best)]
