"""The same bits for any number of ranks, and after a resume on others.
``communication/test_ranks_in_threads.py`` tests the parts independent of MPI with more
ranks and kinds of state, and ``test_digests.py`` every method.
"""

import json
import re
from pathlib import Path

import jobs
import numpy as np
import pytest
import tiny
from every_method import kind, short
from playing import set_keys
from recorded import assert_alike

from hpcfl.storage import results

pytestmark = pytest.mark.mpi

NEWCOMERS = "newcomers.clients = 3\nnewcomers.epochs = 1"
TENSORS = str(Path(__file__).with_name("tensors.py"))
# kinds of messages and of private state; FedALA has FedAvg's and a model for each
# client
KINDS = ["cwfedavg", "fedala", "fednh", "ifca"]


def test_kinds_of_messages_and_state_on_other_ranks_and_resumed(
    start, alone, experiment, tmp_path, printed
):
    """The run on three ranks is resumed by one process and verified by two ranks."""
    file = experiment(grid(KINDS, (0.5,), NEWCOMERS), 2)
    each_round = ["--set", "checkpoint.every=1", "--out"]
    assert alone(file, tmp_path / "1", *each_round[:2]) == 0
    code, output = start(3, file, *each_round, tmp_path / "3").wait()
    assert code == 0, output
    compare(tmp_path / "1", tmp_path / "3", len(KINDS))
    for cell in cells(tmp_path / "3"):
        # as if killed before it was written
        (tmp_path / "3" / cell / "checkpoints" / "manifest-00000002.json").unlink()
    assert alone(file, tmp_path / "3", *each_round[:2]) == 0
    assert printed().count("after round 1") == len(KINDS)
    compare(tmp_path / "1", tmp_path / "3", len(KINDS))
    own = "--own", "tiny:blobs", "--own", "tiny:Counts"
    again = start(2, tmp_path / "1", "--sample", 1, *own, command="verify")
    code, output = again.wait()
    assert code == 0 and ": the same final state, and the same numbers" in output


def with_model(file, model):
    """Write the experiment file with other models."""
    path = Path(file)
    mlp = 'name = "mlp"\nhidden = [8]'
    path.write_text(path.read_text().replace(mlp, f'name = "{model}"'))
    return file


def test_other_frozen_parameters_on_one_rank_are_refused(start, experiment, tmp_path):
    text = '[method]\nname = "fedavg"\n'
    file = with_model(experiment(text), "tiny:lora_by_rank")
    code, output = start(3, file, "--out", tmp_path / "out").wait()
    assert code == 2
    assert re.search(r"parameters: \S+ on rank 0, \S+ on rank 1", output)
    assert not (tmp_path / "out" / "run.json").exists()


def test_class_models_are_sent_if_they_have_fewer_bytes(start, experiment, tmp_path):
    """In the first round rows are sent. Later each rank receives four models in
    float64, which have as many bytes as eight in float32: fewer than the 20 clients'
    rows with one worker and two, but not with three.
    """
    file = experiment("[method]\nname = 'cwfedavg'\nlayers = 'all'\n", 2)
    keys = set_keys(
        "partition.clients=20",
        f"partition.counts={tiny.FEW * 4}",
        "model.hidden=[30]",
    )
    many = [file, *keys, "--out"]
    for ranks in (0, 2, 3, 4):
        code, output = start(ranks, *many, tmp_path / str(ranks)).wait()
        assert code == 0, output
        assert (
            jobs.digest(tmp_path / str(ranks))
            == jobs.digest(tmp_path / "0")
            is not None
        )
        same(results.read(tmp_path / "0"), results.read(tmp_path / str(ranks)))
    first, second = np.transpose(
        [
            results.read(tmp_path / str(ranks)).values["bytes_down"][:2]
            for ranks in (2, 3, 4)
        ]
    )
    assert second[0] < 0.5 * first[0]
    assert second[1] < 0.9 * first[1]
    assert second[2] == first[2]


def test_rows_of_a_client_that_is_left_out_are_not_waited_for(
    start, alone, experiment, tmp_path
):
    """One of five ranks with rows has no remaining row."""
    file = experiment(
        "[method]\nname = 'tiny:DivergesInRows'\nclient = 3\nsince = 2\n", 3
    )
    exclude = set_keys("training.on_divergence=exclude")
    given = {"program": (TENSORS,), "WIDE_BYTES": "1"}
    assert alone(file, tmp_path / "1", *exclude) == 0
    code, output = start(6, file, *exclude, "--out", tmp_path / "6", **given).wait()
    assert code == 0, output
    digests = [jobs.digest(tmp_path / folder) for folder in ("1", "6")]
    assert digests[0] == digests[1] is not None
    code, output = start(3, file, "--out", tmp_path / "stopped", **given).wait()
    assert code == 1 and "client 3 diverged" in output and "Traceback" not in output, (
        output
    )


@pytest.mark.parametrize("wide", [1, 1 << 16], ids=["a row at a time", "all together"])
def test_tensors_are_exchanged_like_arrays(start, alone, experiment, tmp_path, wide):
    # rows, pools, shared fields, narrow ones
    file = experiment(grid(["fednh", "fedfomo"], (0.5,)))
    assert alone(file, tmp_path / "1") == 0
    code, output = start(
        3, file, "--out", tmp_path / "3", program=(TENSORS,), WIDE_BYTES=str(wide)
    ).wait()
    assert code == 0, output
    compare(tmp_path / "1", tmp_path / "3", 2)


def grid(names, fractions, newcomers=""):
    """Yield cells of these methods, each with these shares of clients in a round.

    newcomers: keys for methods with special treatment of newcomers.
    """
    lines = [f"[sweep]\nparticipation.fraction = {list(fractions)}"]
    for name in names:
        lines.append("[[sweep.cases]]")
        # a JSON string, number or truth value is also one of TOML
        for key, value in short(name).items():
            lines.append(f"method.{key} = {json.dumps(value)}")
        if not kind(name).no_newcomers:
            lines.append(newcomers)
    return "\n".join(lines)


def cells(folder):
    return sorted(path.parent.name for path in folder.glob("*/run.json"))


def compare(calm, other, count):
    """Compare digests and metrics of all cells; all cells differ, except those that
    equal FedAvg by definition.
    """
    assert cells(calm) == cells(other) and len(cells(calm)) == count
    expected = {cell: jobs.digest(calm / cell) for cell in cells(calm)}
    assert {cell: jobs.digest(other / cell) for cell in cells(calm)} == expected
    of_own = [digest for cell, digest in expected.items() if "knn-per" not in cell]
    assert len(set(of_own)) == len(of_own)
    for cell in cells(calm):
        same(results.read(calm / cell), results.read(other / cell))


def same(one, other):
    """Assert that all metrics are equal except times and bytes."""
    assert one.completed == other.completed != []
    assert np.array_equal(one.rounds, other.rounds)
    assert_alike(one.values, other.values)
