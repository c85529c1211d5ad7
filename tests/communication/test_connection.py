"""Communicator of a process."""

import pytest

from hpcfl.communication import connection
from hpcfl.communication.communicator import OneProcess


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    names = "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", *connection.LAUNCHED_BY
    for name in names:
        monkeypatch.delenv(name, raising=False)


def test_a_process_that_no_launcher_started_is_alone():
    assert isinstance(connection.connect(), OneProcess)


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ({}, None),
        ({"PMI_SIZE": "3"}, 3),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, 2),
        ({"SLURM_NTASKS": "4"}, None),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, 4),
    ],
)
def test_the_launcher_reports_the_number_of_ranks(monkeypatch, variables, size):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert connection.read_world_size() == size
