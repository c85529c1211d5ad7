import pytest

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


def test_tensorboard_reads_each_round_once_also_after_an_interruption(interrupted):
    pytest.importorskip("tensorboard")
    folder = interrupted("tensorboard")
    assert len(list((folder / "tensorboard").iterdir())) == 1
    found, recorded = events(folder / "tensorboard"), results.read(folder)
    assert [step for step, _ in found["post/weighted"]] == [1, 2, 3, 4]
    assert found["pre/weighted"] == [
        (step, pytest.approx(value, rel=1e-6))
        for step, value in zip(
            recorded.rounds, recorded.values["pre/weighted"], strict=True
        )
    ]
