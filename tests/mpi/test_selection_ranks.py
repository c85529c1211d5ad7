"""Clients chosen by what they told: the same bits for any number of ranks, resumed on
others too.
"""

import pytest

from hpcfl.storage.manifest import latest

pytestmark = pytest.mark.mpi

CHOSEN = """
name = "chosen"
rounds = 3
[partition]
scheme = "iid"
clients = 8
[method]
name = "ditto"
[participation]
select = "oort"
explore = 0.5
fraction = 0.5
[time]
mode = "synchronous"
over_selection = 1.5
[training]
lr = 0.1
[checkpoint]
every = 1
"""


def test_who_is_chosen_by_losses_is_the_same_on_all_ranks(start, alone, tmp_path):
    file = tmp_path / "chosen.toml"
    file.write_text(CHOSEN)
    assert alone(str(file), tmp_path / "1") == 0
    code, output = start(3, file, "--out", tmp_path / "3").wait()
    assert code == 0, output
    expected = latest(tmp_path / "1" / "checkpoints").digest
    assert latest(tmp_path / "3" / "checkpoints").digest == expected
    # as if killed before it was there
    (tmp_path / "3" / "checkpoints" / "manifest-00000003.json").unlink()
    code, output = start(2, file, "--out", tmp_path / "3").wait()
    assert code == 0 and "continues after round 2" in output, output
    assert latest(tmp_path / "3" / "checkpoints").digest == expected
