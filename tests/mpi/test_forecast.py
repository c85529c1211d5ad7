"""What ``check`` says of rank 0's memory, held against what rank 0 really takes.

Python, torch and the data are the same for a small and a large model, so what two runs
differ by is what the forecasts differ by.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from jobs import MPIEXEC

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.report import needs
from hpcfl.simulation.prepare import prepare

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

SMALL, LARGE = [8], [3000, 1500]  # 0.6 thousand and 4.7 million parameters


EXPERIMENT = """
rounds = 3
[data]
dataset = "digits"
[partition]
scheme = "iid"
clients = 12
[model]
name = "mlp"
hidden = {hidden}
[method]
name = "{method}"
[training]
batch_size = 200
"""


def forecast(method, hidden):
    table = tomllib.loads(EXPERIMENT.format(method=method, hidden=hidden))
    return needs.of_server(prepare(config.parse(table), OneProcess()))


def measured(folder, method, hidden):
    folder.mkdir()
    (folder / "experiment.toml").write_text(
        EXPERIMENT.format(method=method, hidden=hidden)
    )
    program = Path(__file__).with_name("measured.py")
    ranks = [MPIEXEC, "-n", "2", sys.executable, program]
    subprocess.run(
        [*ranks, "run", "experiment.toml", "--out", "run"],
        cwd=folder,
        env={**os.environ, "MEASURED": str(folder / "bytes")},
        check=True,
        capture_output=True,
    )
    return int((folder / "bytes").read_text())


# FedAvg's server gets one mean; FedAMP's keeps, sends and gets a model of each client.
@pytest.mark.parametrize("method", ["fedavg", "fedamp"])
def test_the_server_takes_what_was_forecast(tmp_path, method):
    grown = measured(tmp_path / "large", method, LARGE) - measured(
        tmp_path / "small", method, SMALL
    )
    expected = forecast(method, LARGE) - forecast(method, SMALL)
    assert 0.75 < grown / expected < 1.25
