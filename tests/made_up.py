"""Synthetic results of runs: nothing is trained, and every number is known."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from recorded import sparse

from hpcfl.experiment import config, experiment_file, measures
from hpcfl.storage import results, run_folder
from hpcfl.storage.metrics import ResultsWriter, find_primary, list_scores
from hpcfl.storage.results import Results
from hpcfl.storage.run_status import RunStage, RunStatus
from hpcfl.trained.run import Run

PHASES = ("round", "train", "score", "send", "gather", "aggregate", "checkpoint")
STARTS = [
    {
        "after": 0,
        "time": "2026-01-01 00:00:00 UTC",
        "ranks": 3,
        "commit": "abc",
        "failure": None,
    },
    {
        "after": 7,
        "time": "2026-01-02 00:00:00 UTC",
        "ranks": 1,
        "commit": "abc",
        "failure": "no space",
    },
]


def run(
    method: str = "fedavg",
    seed: int = 0,
    accuracy: tuple[float, ...] = (0.5, 0.75, 0.6),
    finished: bool = True,
    dataset: str = "digits",
    clients: float = 5.0,
    **method_keys: object,
) -> Run:
    """Return a run whose best round is the round of its highest accuracy."""
    rounds = np.arange(1, len(accuracy) + 1)
    values = {
        "pre/weighted": np.array(accuracy),
        "pre/mean": np.array(accuracy) - 0.1,
        "seconds/round": rounds / 10,
        "pre/clients": np.full(len(rounds), clients),
        "clients/floats_up": np.zeros((len(rounds), 2)),
    }
    status = RunStatus(
        stage=RunStage.FINISHED if finished else RunStage.PLAYING,
        done=len(rounds),
        digest=None,
        completed=[],
        is_locked=False,
        failure=None,
    )
    config = {
        "name": f"{method}-{seed}",
        "seed": seed,
        "rounds": 3,
        "data": {"dataset": dataset, "root": None},
        "partition": {"scheme": "iid", "seed": 1},
        "method": {"name": method, **method_keys},
        "evaluation": {"score": "pre", "metric": "weighted"},
        "runtime": {"device": "cpu"},
    }
    results = Results(rounds=rounds, values=sparse(values))
    return Run(
        Path(f"runs/{method}-{seed}"),
        config,
        results,
        *find_primary(config["evaluation"], results),
        status,
    )


def summed_up(
    path: Path, resolved: dict[str, Any], results: Results, finished: bool = True
) -> Run:
    """Return a run with a resolved configuration and these results."""
    stage = RunStage.FINISHED if finished else RunStage.PLAYING
    done = int(results.played.sum())
    status = RunStatus(stage, done, None, [], False, None)
    primary = find_primary(resolved["evaluation"], results)
    return Run(path, resolved, results, *primary, status)


def of_clients(
    accuracies, counts: np.ndarray, samples: float = 10.0
) -> SimpleNamespace:
    """Return the data that tables read from a run with clients' accuracies [T, M] and
    the given numbers of samples.
    """
    right = samples * np.array(accuracies, float)
    means = np.nanmean(right, axis=1) / samples
    values = {
        "clients/pre/correct": right,
        "clients/pre/total": np.full(right.shape, samples),
        "pre/mean": means,
    }
    rounds = np.arange(1, len(right) + 1)
    recorded = Results({}, {"test_counts": counts}, rounds, sparse(values))
    best = SimpleNamespace(best={"round": int(np.nanargmax(means)) + 1})
    return SimpleNamespace(
        results=recorded,
        score="pre",
        scores=list_scores(recorded),
        folder="run",
        summary=best,
    )


def changed(of: Run, values: dict[str, np.ndarray]) -> Run:
    """Return the run with other recorded values."""
    return replace(of, results=replace(of.results, values=sparse(values)))


def seeds(method: str, *best: float, **keys: object) -> list[Run]:
    return [run(method, seed, (0.1, one), **keys) for seed, one in enumerate(best)]


def folder(
    path: Path,
    method: str = "fedavg",
    seed: int = 0,
    rounds: int = 12,
    clients: int = 10,
    header: dict[str, Any] | None = None,
    finished: bool = True,
    **sections,
) -> Path:
    """Return a run's folder whose accuracies increase at a rate that depends on method
    and seed.

    header: further entries of its results. An unfinished run has no round R + 1.
    """
    parsed = config.parse(
        {
            "seed": seed,
            "rounds": rounds,
            "method": {"name": method},
            "partition": {"clients": clients},
            **sections,
        }
    )
    dealt, drawn = (
        np.random.default_rng(seed),
        np.random.default_rng([seed, *method.encode()]),
    )
    held = np.stack(
        [
            dealt.multinomial(100, dealt.dirichlet(np.full(10, 0.1)))
            for _ in range(clients)
        ]
    )
    numbers = np.arange(1, rounds + 1 + finished)
    level, pace = drawn.uniform(0.5, 0.95, clients), drawn.uniform(0.02, 0.3)
    reached = level * (1 - np.exp(-pace * numbers[:, None])) + drawn.normal(
        0, 0.01, (len(numbers), clients)
    )
    correct = np.round(100 * np.clip(reached, 0, 1))
    values: dict[str, np.ndarray] = {
        "final": (numbers > rounds).astype(np.int64),
        "floats_down": np.full(len(numbers), 4810.0),
        "bytes_down": np.full(len(numbers), 10**6),
        "bytes_up": np.full(len(numbers), 2 * 10**6),
        "clients/floats_up": np.where(
            numbers[:, None] > rounds, np.nan, np.full(clients, 4810.0)
        ),
        **{
            f"seconds/{phase}": drawn.uniform(0.1, 0.2, len(numbers))
            for phase in PHASES
        },
    }
    column = type(parsed.method).primary
    values |= {
        f"clients/{column}/correct": correct,
        f"clients/{column}/total": np.full(correct.shape, 100.0),
        f"{column}/weighted": correct.mean(axis=1) / 100,
        f"{column}/mean": correct.mean(axis=1) / 100,
        f"{column}/std": correct.std(axis=1) / 100,
        f"{column}/worst_tenth": correct.min(axis=1) / 100,
        f"{column}/clients": np.full(len(numbers), float(clients)),
    }
    described = {
        "run": parsed.fingerprint(),
        "config": parsed.resolved(),
        "primary": column,
        "ranks": 3,
        "commit": "abc",
        "versions": {"hpcfl": "1", "torch": "2"},
        "command": ["hpcfl", "run", "x.toml"],
        "scores": measures.describe({"accuracy": measures.list_built_in()["accuracy"]}),
        **(header or {}),
    }
    recorded = Results(
        described,
        {"train_counts": held, "test_counts": held // 3 + 1},
        numbers,
        sparse(values),
        [rounds] if finished else [],
    )
    path.mkdir(parents=True)
    (path / "metrics.h5").write_bytes(results.encode(recorded))
    (path / "run.json").write_text(
        json.dumps({"format": run_folder.FORMAT, "config": described["config"]})
    )
    return path


def spoilt(path: Path, text: str) -> Path:
    """Return a sweep's folder in which every text is ``text``."""
    for seed in (0, 1):
        for method in ("fedavg", "ditto"):
            name = f"{text.replace('/', '∕')} {method} {seed}"
            run = folder(path / "sweep" / name, method, seed)
            there = json.loads((run / "run.json").read_text())
            there["config"]["method"]["name"] = f"{text} {method}"
            there["config"]["method"][text] = text
            there["config"]["data"]["dataset"] = there["config"]["partition"][
                "seed"
            ] = text
            (run / "run.json").write_text(json.dumps(there))
            found = results.read(run)
            scores = {
                text: {
                    "unit": "%",
                    "better": "up",
                    "recorded": {"weighted": "weighted", text: "std"},
                }
            }
            starts = [
                {**start, "time": text, "commit": text, "failure": text}
                for start in STARTS
            ]
            header = {
                **found.header,
                "run": experiment_file.fingerprint(there["config"]),
                "commit": f"{text} {method}",
                "versions": {text: text},
                "command": [text],
                "processor": text,
                "gpus": [text],
                "scores": scores,
                "starts": starts,
            }
            (run / "metrics.h5").write_bytes(
                results.encode(replace(found, header=header))
            )
    failed = folder(path / "sweep" / "failed", "local", 0, finished=False)
    (failed / "failure.txt").write_text(text)
    return path / "sweep"


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
    """Return ``make_run(name, method, rounds=…)``, which makes a run's folder with
    three rounds and a final scoring of the start models.
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
        folder.mkdir(parents=True)
        writer = ResultsWriter(
            folder,
            {
                "run": experiment_file.fingerprint(resolved),
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
            json.dumps({"format": run_folder.FORMAT, "config": resolved})
        )
        return folder

    return make


def timed(method: str, seed: int, *accuracies: float, step: float = 10.0) -> Run:
    """Return a run with rounds of ``step`` seconds and three clients that take part in
    turn; the first client is the slowest.
    """
    finished = run(method, seed, accuracies)
    count = len(accuracies)
    ended = step * np.arange(1, count + 1)
    turns = np.arange(count)[:, None] % 3 == np.arange(3)
    values = {
        **finished.results.values,
        "clients/floats_up": np.zeros((count, 3)),
        "time/seconds": ended,
        "time/started": ended - step,
        "clients/updates": turns.cumsum(axis=0).astype(float),
    }
    static = {"device_pace": np.array([9, 1, 2])}
    return replace(
        finished,
        results=replace(finished.results, values=sparse(values), static=static),
    )
