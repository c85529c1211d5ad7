"""Data of all clients before round 1."""

import numpy as np
import pytest
from playing import prepare_tiny
from refusals import expect_refusal

from hpcfl.experiment import config
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation.prepared_data import list_data_notes, prepare_data


@pytest.mark.parametrize("redraw", [False, True])
def test_redraw_gives_each_partition_different_samples(redraw):
    datasets = []
    for seed in (1, 2):
        experiment = config.parse(
            {
                "data": {"samples": 200, "redraw": redraw},
                "partition": {"scheme": "iid", "clients": 2, "seed": seed},
                "method": {"name": "fedavg"},
            }
        )
        datasets.append(prepare_data(experiment, experiment.method).dataset)
    assert datasets[0].x.equal(datasets[1].x) is not redraw


class Percent(FedAvg):
    def validation_share(self):
        return 20


def test_a_share_of_held_out_samples_is_below_one():
    with expect_refusal(r"test_prepared_data.py:\d+: Percent\.validation_share .*20; "):
        prepare_tiny(f"{__name__}:Percent")


def note_data(data, **sections):
    """Return the notes on the data of an experiment with one client."""
    experiment = config.parse(
        {
            "data": data,
            "partition": {"scheme": "iid", "clients": 1},
            "method": {"name": "fedavg"},
            **sections,
        }
    )
    prepared = prepare_data(experiment, experiment.method)
    return list_data_notes(experiment, prepared)


def test_a_base_is_noted_for_words_that_the_data_set_numbered(tmp_path):
    adapter = {"kind": "head", "base": str(tmp_path / "bert.safetensors")}
    (tmp_path / "t.csv").write_text("text,label\n" + "so good,1\nbad,0\n" * 4)
    texts = {"dataset": "csv", "file": str(tmp_path / "t.csv")}
    [note] = note_data(texts, adapter=adapter)
    assert "bert.safetensors" in note and not note_data(texts)
    np.savez(tmp_path / "t.npz", x=[[1, 2], [3, 0]] * 4, y=[0, 1] * 4)
    ids = {"dataset": "npz", "file": str(tmp_path / "t.npz")}
    assert not note_data(ids, adapter=adapter)


@pytest.mark.parametrize(("largest", "is_noted"), [(16, True), (1, False)])
def test_noise_and_patches_are_noted_for_other_values(tmp_path, largest, is_noted):
    x = np.linspace(0, largest, 8 * 16, dtype=np.float32).reshape(8, 1, 4, 4)
    np.savez(tmp_path / "t.npz", x=x, y=[0, 1] * 4)
    notes = note_data(
        {"dataset": "npz", "file": str(tmp_path / "t.npz")},
        shift=[{"kind": "rotation"}, {"kind": "corruption"}, {"kind": "noise-level"}],
        attack={"kind": "backdoor", "clients": []},
    )
    keys = [note.partition(".kind")[0] for note in notes]
    assert keys == ["attack", "shift.1", "shift.2"] * is_noted
