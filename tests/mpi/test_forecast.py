"""Rank 0's memory in the forecast of ``check``, compared with its real memory.

Python, torch and the data are the same for a small and a large model, so the difference
of two runs must be the difference of the forecasts.
"""

import tomllib
from pathlib import Path

import pytest
from playing import prepare_alone

from hpcfl.commands import needs

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

SMALL, LARGE = [8], [2000, 1000]  # 84 and 2 million parameters


EXPERIMENT = f"""
rounds = 2
[data]
dataset = "tiny:blobs"
[partition]
scheme = "tiny:Counts"
clients = 6
counts = {[[4, 0, 0, 0]] * 6}
[model]
name = "mlp"
hidden = %s
[method]
name = "%s"
"""


def forecast(method, hidden):
    table = tomllib.loads(EXPERIMENT % (hidden, method))
    return needs.compute_server_needs(prepare_alone(table)).memory


def measured(start, folder, method, hidden):
    folder.mkdir()
    file, program = folder / "experiment.toml", Path(__file__).with_name("measured.py")
    file.write_text(EXPERIMENT % (hidden, method))
    job = start(
        2,
        file,
        "--out",
        folder / "run",
        program=(str(program),),
        MEASURED=str(folder / "bytes"),
    )
    code, output = job.wait()
    assert code == 0, output
    return int((folder / "bytes").read_text())


# FedAvg's server receives one mean; FedAMP's stores, sends and receives a model of each
# client.
@pytest.mark.parametrize("method", ["fedavg", "fedamp"])
def test_the_servers_memory_matches_the_forecast(start, tmp_path, method):
    large = measured(start, tmp_path / "large", method, LARGE)
    grown = large - measured(start, tmp_path / "small", method, SMALL)
    expected = forecast(method, LARGE) - forecast(method, SMALL)
    assert 0.75 < grown / expected < 1.25, (grown, expected)
