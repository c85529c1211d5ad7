"""Experiment files and jobs that end with their test."""

import random
from pathlib import Path
from typing import Any

import pytest
from jobs import EXPERIMENT, MPIEXEC, Job

from hpcfl.cli import command
from hpcfl.communication.communicator import OneProcess


@pytest.fixture
def experiment(tmp_path: Path):
    """``experiment(text, rounds)``: a file on the tiny data with further tables."""

    def write(text: str, rounds: int = 3) -> str:
        path = tmp_path / "experiment.toml"
        path.write_text(EXPERIMENT.format(rounds=rounds) + text)
        return str(path)

    return write


@pytest.fixture
def start(zygote, tmp_path_factory):
    """``start(ranks, *arguments)`` → Job, ended with the test."""
    if not MPIEXEC.exists():
        pytest.skip("no mpiexec beside this Python")
    jobs: list[Job] = []

    def launch(ranks: int, *arguments: Any, **keys: Any) -> Job:
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
    """The same moments in every run of the tests, as far as the machine's speed allows."""
    return random.Random(20)


@pytest.fixture
def alone():
    """``alone(file, folder, *options)`` runs an experiment in this process, which saves
    starting one; the exit code.
    """
    return lambda file, folder, *options: command(
        ["run", file, *options, "--out", str(folder)], OneProcess()
    )
