"""A server that waits for nobody: the same bits for any number of ranks, resumed too
(time.md §6, §7, §9).
"""

import pytest

from hpcfl.storage.manifest import latest

pytestmark = pytest.mark.mpi

ASYNCHRONOUS = """
name = "asynchronous"
rounds = 6
[partition]
scheme = "iid"
clients = 12
[method]
name = "ditto"
[model]
name = "mlp"
hidden = [8]
[training]
lr = 0.1
[evaluation]
every = 5
[checkpoint]
every = 1
[time]
mode = "asynchronous"
concurrency = 6
buffer = 2
sigma = 1.0
"""


def digest(folder):
    return latest(folder / "checkpoints").digest


def test_flights_have_the_same_bits_on_any_number_of_ranks_and_resumed(
    start, alone, tmp_path
):
    file = tmp_path / "experiment.toml"
    file.write_text(ASYNCHRONOUS)
    assert alone(str(file), tmp_path / "1") == 0
    for ranks in (3, 5):
        code, output = start(ranks, file, "--out", tmp_path / str(ranks)).wait()
        assert code == 0, output
        assert digest(tmp_path / str(ranks)) == digest(tmp_path / "1")
    # as if killed before it was there, while others were in flight
    (tmp_path / "5" / "checkpoints" / "manifest-00000006.json").unlink()
    code, output = start(2, file, "--out", tmp_path / "5").wait()
    assert code == 0 and "continues after round 5" in output, output
    assert digest(tmp_path / "5") == digest(tmp_path / "1")
