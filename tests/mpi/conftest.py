"""Experiment files and jobs that end with their test."""

import random
from pathlib import Path

import pytest
from jobs import EXPERIMENT, MPIEXEC, Job
from playing import call


@pytest.fixture
def experiment(tmp_path: Path):
    """Return ``experiment(text, rounds)``, which writes a file on the tiny data with
    further tables.
    """

    def write(text: str, rounds: int = 3) -> str:
        path = tmp_path / "experiment.toml"
        path.write_text(EXPERIMENT.format(rounds=rounds) + text)
        return str(path)

    return write


@pytest.fixture
def start(zygote, tmp_path_factory):
    """Return ``start(ranks, *arguments)``, which starts a Job that ends with the test."""
    if not MPIEXEC.exists():
        pytest.skip("no mpiexec beside this Python")
    jobs: list[Job] = []

    def launch(ranks: int, *arguments, **keys) -> Job:
        jobs.append(
            Job(
                tmp_path_factory.mktemp("job"),
                zygote,
                ranks,
                [str(argument) for argument in arguments],
                **keys,
            )
        )
        return jobs[-1]

    yield launch
    for job in jobs:
        job.end()


@pytest.fixture
def chance() -> random.Random:
    """Return a generator with fixed draws, so that every run of the tests interrupts at
    the same moments, as far as the machine's speed allows.
    """
    return random.Random(20)


@pytest.fixture
def alone():
    """Return ``alone(file, folder, *options)``, which runs an experiment in this
    process, without the start of another one, and returns the exit code.
    """
    return lambda file, folder, *options: call("run", file, *options, "--out", folder)
