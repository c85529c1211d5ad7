import pytest
import tiny
from playing import run_alone

from hpcfl.storage import results

pytestmark = pytest.mark.slow


def events(folder):
    """Return steps and values by tag, read by TensorBoard's reader."""
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    found = reader.EventAccumulator(str(folder), {"scalars": 0})
    found.Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_tensorboard_reads_each_round_once_also_after_an_interruption(tmp_path):
    pytest.importorskip("tensorboard")

    def play(rounds):
        table = tiny.table(
            "fedavg",
            rounds=rounds,
            checkpoint={"every": 1},
            runtime={"track": ["tensorboard"]},
        )
        run_alone(table, tmp_path)

    play(2)
    assert [step for step, _ in events(tmp_path / "tensorboard")["pre/weighted"]] == [
        1,
        2,
        3,
    ]
    (
        tmp_path / "checkpoints" / "manifest-00000002.json"
    ).unlink()  # round 2 is repeated
    play(4)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    found, recorded = events(tmp_path / "tensorboard"), results.read(tmp_path)
    assert [step for step, _ in found["post/weighted"]] == [1, 2, 3, 4]
    assert found["pre/weighted"] == [
        (step, pytest.approx(value, rel=1e-6))
        for step, value in zip(
            recorded.rounds, recorded.values["pre/weighted"], strict=True
        )
    ]
