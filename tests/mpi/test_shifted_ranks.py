"""Clients that see other things: the same bits for any number of ranks, resumed across a
drift too (heterogeneity.md H0, H7).
"""

import pytest

from hpcfl.storage.manifest import latest

pytestmark = pytest.mark.mpi

SHIFTED = """
name = "shifted"
rounds = 3
[partition]
scheme = "iid"
clients = 8
[method]
name = "ifca"
[training]
lr = 0.1
[checkpoint]
every = 1
[newcomers]
clients = 3
[[shift]]
kind = "corruption"
severity = "random"
groups = "clients"
[[shift]]
kind = "rotation"
angles = [0, 90]
at = [2]
gradual = 2
who = 0.5
[[shift]]
kind = "labels"
groups = 3
assign = "random"
"""


def digest(folder):
    return latest(folder / "checkpoints").digest


def test_shifts_have_the_same_bits_on_any_number_of_ranks_and_resumed(
    start, alone, tmp_path
):
    file = tmp_path / "experiment.toml"
    file.write_text(SHIFTED)
    assert alone(str(file), tmp_path / "1") == 0
    for ranks in (2, 3):
        code, output = start(ranks, file, "--out", tmp_path / str(ranks)).wait()
        assert code == 0, output
        assert digest(tmp_path / str(ranks)) == digest(tmp_path / "1")
    # as if killed before it was there, in the middle of the drift
    (tmp_path / "3" / "checkpoints" / "manifest-00000003.json").unlink()
    code, output = start(2, file, "--out", tmp_path / "3").wait()
    assert code == 0, output
    assert digest(tmp_path / "3") == digest(tmp_path / "1")
