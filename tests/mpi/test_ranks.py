"""The same bits for any number of ranks, with all clients a round and half of them;
every method on real data with half of them, on three ranks and resumed alone.
"""

import json
from pathlib import Path

import jobs
import numpy as np
import pytest
import tiny
from every_method import NAMES, kind, short

from hpcfl.storage import results

pytestmark = pytest.mark.mpi

NEWCOMERS = "newcomers.clients = 3\nnewcomers.epochs = 1"
TENSORS = str(Path(__file__).with_name("tensors.py"))
# kinds of messages and of private state
KINDS = ["fedavg", "cwfedavg", "fedala", "fednh", "ifca"]


DIGITS = """
name = "digits"
rounds = 2
[data]
dataset = "digits"
[partition]
scheme = "dirichlet"
beta = 0.5
clients = 10
[model]
name = "mlp"
hidden = [16]
[training]
lr = 0.1
batch_size = 50
[checkpoint]
every = 1
"""


@pytest.mark.timeout(1800)
def test_every_method_on_digits_with_three_ranks_and_resumed(
    start, alone, tmp_path, capsys
):
    file = tmp_path / "experiment.toml"
    file.write_text(DIGITS + grid(NAMES, (0.5,), NEWCOMERS))
    assert alone(str(file), tmp_path / "1") == 0
    code, output = start(3, file, "--out", tmp_path / "3").wait()
    assert code == 0, output
    compare(tmp_path / "1", tmp_path / "3", len(NAMES))
    for cell in cells(tmp_path / "3"):
        values = results.read(tmp_path / "3" / cell).values
        scores = [values[name] for name in values if name.endswith("/weighted")]
        assert scores and all(np.isfinite(score).any() for score in scores), cell
        assert np.isfinite(values["clients/train_loss"][:2]).any(), cell
        assert np.isfinite(values.get("newcomers/after/weighted", [0])[-1]), cell
        # as if killed before it was there
        (tmp_path / "3" / cell / "checkpoints" / "manifest-00000002.json").unlink()
    assert alone(str(file), tmp_path / "3") == 0
    assert capsys.readouterr().out.count("continues after round 1") == len(NAMES)
    compare(tmp_path / "1", tmp_path / "3", len(NAMES))


@pytest.mark.timeout(1800)
def test_every_kind_of_layer_with_any_number_of_ranks_and_resumed(
    start, alone, tmp_path
):
    text = jobs.EXPERIMENT.format(rounds=3)
    for key, other in {
        'name = "mlp"\nhidden = [8]': 'name = "tiny:layered"',
        "batch_size = 4": "batch_size = 5",
        "every = 2": "every = 1",
    }.items():
        assert key in text
        text = text.replace(key, other)
    file = tmp_path / "experiment.toml"
    kinds = f"[sweep]\nmodel.kind = {list(tiny.LAYERED)}\n"
    file.write_text(f'{text}[method]\nname = "fedavg"\n{kinds}')
    assert alone(str(file), tmp_path / "1") == 0
    for ranks in (2, 5):
        code, output = start(ranks, file, "--out", tmp_path / str(ranks)).wait()
        assert code == 0, output
        compare(tmp_path / "1", tmp_path / str(ranks), len(tiny.LAYERED))
    for cell in cells(tmp_path / "5"):  # as if killed before it was there
        (tmp_path / "5" / cell / "checkpoints" / "manifest-00000003.json").unlink()
    code, output = start(3, file, "--out", tmp_path / "5").wait()
    assert code == 0 and "continues after round 2" in output, output
    compare(tmp_path / "1", tmp_path / "5", len(tiny.LAYERED))


@pytest.mark.parametrize(("ranks", "fraction"), [(5, 1.0), (7, 0.5)])
def test_kinds_of_messages_and_state_with_any_number_of_ranks(
    start, alone, experiment, tmp_path, ranks, fraction
):
    """Seven ranks are more than there are clients."""
    file = experiment(grid(KINDS, (fraction,)))
    assert alone(file, tmp_path / "1") == 0
    code, output = start(ranks, file, "--out", tmp_path / "ranks").wait()
    assert code == 0, output
    compare(tmp_path / "1", tmp_path / "ranks", len(KINDS))


def with_model(file, model):
    """The experiment file, of which all models are others."""
    path = Path(file)
    mlp = 'name = "mlp"\nhidden = [8]'
    path.write_text(path.read_text().replace(mlp, f'name = "{model}"'))
    return file


def test_frozen_parameters_are_the_same_on_all_ranks(
    start, alone, experiment, tmp_path
):
    methods = ["fedavg", "fedrep", "apfl"]
    file = with_model(experiment(grid(methods, (0.5,))), "tiny:lora")
    assert alone(file, tmp_path / "1") == 0
    code, output = start(3, file, "--out", tmp_path / "3").wait()
    assert code == 0, output
    compare(tmp_path / "1", tmp_path / "3", len(methods))
    for cell in cells(tmp_path / "3"):  # as if killed before they were there
        checkpoints = sorted((tmp_path / "3" / cell / "checkpoints").glob("manifest-*"))
        checkpoints[-1].unlink()
    code, output = start(2, file, "--out", tmp_path / "3").wait()
    assert code == 0 and output.count("continues after round 2") == len(methods), output
    compare(tmp_path / "1", tmp_path / "3", len(methods))


def test_other_frozen_parameters_on_one_rank_are_refused(start, experiment, tmp_path):
    text = '[method]\nname = "fedavg"\n'
    file = with_model(experiment(text), "tiny:lora_by_rank")
    code, output = start(3, file, "--out", tmp_path / "out").wait()
    assert (
        code == 2
        and "frozen or given parameters on rank 1 are not those on rank 0" in output
    )
    assert not (tmp_path / "out" / "run.json").exists()


def test_class_models_travel_where_they_are_fewer_bytes(start, experiment, tmp_path):
    """In the first round rows travel. Then four models in float64 to each rank, which
    are as many bytes as eight: less than the 20 clients' rows for one worker and two,
    but not for three.
    """
    file = experiment("[method]\nname = 'cwfedavg'\nlayers = 'all'\n", 2)
    many = [
        file,
        "--set",
        "partition.clients=20",
        "--set",
        f"partition.counts={tiny.FEW * 4}",
        "--set",
        "model.hidden=[30]",
        "--out",
    ]
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
    assert (
        second[0] < 0.5 * first[0]
        and second[1] < 0.9 * first[1]
        and second[2] == first[2]
    )


def test_a_client_that_is_left_out_counts_nowhere(start, experiment, tmp_path):
    """That holds for the means that ranks add up, too, where one rank has nothing left
    to add.
    """
    file = experiment("[method]\nname = 'tiny:Diverges'\nclient = 3\nsince = 2\n", 3)
    arguments = [file, "--set", "training.on_divergence=exclude", "--out"]
    codes = [
        start(ranks, *arguments, tmp_path / str(ranks)).wait()[0] for ranks in (0, 3, 6)
    ]
    assert codes == [0, 0, 0]
    (digest,) = {jobs.digest(tmp_path / str(ranks)) for ranks in (0, 3, 6)}
    assert digest is not None
    for ranks in (3, 6):
        same(results.read(tmp_path / "0"), results.read(tmp_path / str(ranks)))


def test_rows_of_a_client_that_is_left_out_are_not_waited_for(
    start, experiment, tmp_path
):
    """Of two ranks with rows, and of five of which one has none left."""
    file = experiment(
        "[method]\nname = 'tiny:DivergesInRows'\nclient = 3\nsince = 2\n", 3
    )
    arguments = ["--set", "training.on_divergence=exclude", "--out"]
    given = {"program": (TENSORS,), "WIDE_BYTES": "1"}
    assert start(0, file, *arguments, tmp_path / "0").wait()[0] == 0
    for ranks in (3, 6):
        code, output = start(
            ranks, file, *arguments, tmp_path / str(ranks), **given
        ).wait()
        assert code == 0, output
        assert (
            jobs.digest(tmp_path / str(ranks))
            == jobs.digest(tmp_path / "0")
            is not None
        )
    code, output = start(3, file, "--out", tmp_path / "stopped", **given).wait()
    assert code == 1 and "client 3 diverged" in output and "Traceback" not in output, (
        output
    )


@pytest.mark.parametrize("wide", [1, 1 << 16], ids=["a row at a time", "all together"])
def test_tensors_travel_like_arrays(start, alone, experiment, tmp_path, wide):
    file = experiment(
        grid(["fednh", "fedfomo"])
    )  # rows, pools, shared fields, narrow ones
    assert alone(file, tmp_path / "1") == 0
    code, output = start(
        3, file, "--out", tmp_path / "3", program=(TENSORS,), WIDE_BYTES=str(wide)
    ).wait()
    assert code == 0, output
    compare(tmp_path / "1", tmp_path / "3", 4)


def test_matrices_in_files_give_the_same_bits(start, alone, experiment, tmp_path):
    file = experiment(
        grid(
            ["cwfedavg", "diversifed", "fedfomo", "ifca", "fedcac", "cfl", "apple"],
            (0.5,),
        )
    )
    assert alone(file, tmp_path / "1") == 0
    code, output = start(
        3, file, "--out", tmp_path / "3", "--set", "runtime.memory=1e-6"
    ).wait()
    assert code == 0, output
    compare(tmp_path / "1", tmp_path / "3", 7)


def grid(names, fractions=(1.0, 0.5), newcomers=""):
    """Cells for these methods, each with these shares of the clients in a round.

    newcomers: keys for those methods that have something for them.
    """
    lines = [f"[sweep]\nparticipation.fraction = {list(fractions)}"]
    for name in names:
        lines.append("[[sweep.cases]]")
        # a JSON string, number or truth value is one of TOML, too
        for key, value in short(name).items():
            lines.append(f"method.{key} = {json.dumps(value)}")
        if not kind(name).no_newcomers:
            lines.append(newcomers)
    return "\n".join(lines)


def cells(folder):
    return sorted(path.parent.name for path in folder.glob("*/run.json"))


def compare(calm, other, count):
    """Equal digests and metrics in so many cells; no two cells are alike, but for what
    ends with FedAvg's models by its definition.
    """
    assert cells(calm) == cells(other) and len(cells(calm)) == count
    expected = {cell: jobs.digest(calm / cell) for cell in cells(calm)}
    assert {cell: jobs.digest(other / cell) for cell in cells(calm)} == expected
    of_own = [digest for cell, digest in expected.items() if "knn-per" not in cell]
    assert len(set(of_own)) == len(of_own)
    for cell in cells(calm):
        same(results.read(calm / cell), results.read(other / cell))


def same(one, other):
    """All that was recorded but times and bytes."""
    assert one.completed == other.completed != [] and np.array_equal(
        one.rounds, other.rounds
    )
    for name, values in one.values.items():
        if not name.startswith(("seconds", "bytes")):
            np.testing.assert_array_equal(values, other.values[name], err_msg=name)
