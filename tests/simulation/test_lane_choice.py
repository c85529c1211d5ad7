"""Number of clients that train together: by the table, by the limit, or by the key."""

import pytest
import tiny
import torch
from torch import nn

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment.sections import Runtime
from hpcfl.simulation.device import list_device_notes
from hpcfl.simulation.lane_choice import UNMEASURED, choose_lanes
from hpcfl.simulation.prepare import prepare
from hpcfl.storage import provenance

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
FITS = 100
DENSE, CONVOLVING = nn.Linear(2, 2), nn.Conv2d(1, 1, 1)
HERE = "NVIDIA H200"


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: HERE)


def table(device=HERE, **row):
    row = {
        "model": "mlp",
        "precision": "float32",
        "lanes": 20,
        "form": "loop",
        "seconds_per_sample": 1.0e-5,
        "peak_bytes": 1,
        **row,
    }
    versions = provenance.collect_versions()
    return {"format": 1, "device": device, "torch": versions["torch"], "rows": [row]}


def choose(module=CONVOLVING, fits=FITS, **runtime):
    experiment = tiny.parse("fedavg", runtime=runtime)
    choice = choose_lanes(experiment, GPU, module, fits)
    for note in choice.notes:
        assert "\n" not in note
    return (choice.models, choice.heads, choice.form), " ".join(choice.notes)


def test_a_row_of_the_table_decides_lanes_and_form():
    assert choose(lane_table=table()) == ((20, FITS, "loop"), "")
    assert choose(DENSE, lane_table=table()) == ((20, FITS, "loop"), "")


def test_without_a_table_convolutions_have_a_bound_and_a_note():
    chosen, note = choose()
    assert chosen == (UNMEASURED, FITS, "grouped") and "runtime.lane_table" in note
    assert choose(fits=3)[0] == (3, 3, "grouped")
    assert choose(convolutions="loop")[0] == (UNMEASURED, FITS, "loop")
    assert choose(DENSE) == ((FITS, FITS, "grouped"), "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (table(device="NVIDIA A100"), "measured on NVIDIA A100"),
        (table(model="cnn"), "'mlp' in float32"),
        (table(precision="bf16"), "'mlp' in float32"),
        (table(lanes=FITS + 1), f"at most {FITS} lanes"),
        (table(form="grouped"), "'mlp'"),
    ],
)
def test_a_table_without_a_row_for_the_run_is_noted(given, words):
    chosen, note = choose(lane_table=given, convolutions="loop")
    assert chosen == (UNMEASURED, FITS, "loop") and words in note


def test_a_table_of_another_torch_is_used_with_a_note():
    other = {**table(), "torch": "1.0"}
    chosen, note = choose(lane_table=other)
    assert chosen == (20, FITS, "loop") and "measured with torch 1.0" in note


def test_a_number_of_lanes_and_a_cpu_leave_the_table_unread():
    """On a CPU convolutions have the form that the key requests, if there are several
    lanes.
    """
    given = {"lane_table": table(), "lanes": 3}
    for runtime in (given, given | {"convolutions": "loop"}):
        experiment = tiny.parse("fedavg", runtime=runtime)
        prepared = prepare(experiment, OneProcess())
        kernel = prepared.resources.kernel
        assert kernel.widest == 3
        assert kernel.form == runtime.get("convolutions", "grouped")
        [note] = [note for note in prepared.notes if "lane_table" in note]
        assert "\n" not in note
    for device in (GPU, CPU):
        assert list_device_notes(device, Runtime()) == []
    assert list_device_notes(CPU, Runtime(convolutions="loop"))
