"""An interrupted run with a tracker."""

import pytest
import tiny
from playing import run_alone


@pytest.fixture
def interrupted(tmp_path):
    """Return ``interrupted(tracker)``, which returns the folder of a run of four rounds
    that repeats its second round.
    """

    def play(tracker):
        folder = tmp_path / "Ann's run"
        second = folder / "checkpoints" / "manifest-00000002.json"
        for rounds in (2, 4):
            second.unlink(missing_ok=True)
            table = tiny.table(
                "fedavg",
                rounds=rounds,
                checkpoint={"every": 1},
                runtime={"track": [tracker]},
            )
            run_alone(table, folder)
        return folder

    return play
