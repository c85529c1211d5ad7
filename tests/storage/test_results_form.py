"""Files of results with a right checksum and wrong content: one line each, before
anything is computed from them.
"""

import json
import os

import numpy as np
import pytest

from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.files import hdf5
from hpcfl.files.atomic import Damaged
from hpcfl.storage import results

CONFIG = config.parse({"method": {"name": "fedavg"}}).resolved()
ROUNDS = np.array([1, 2, 3])
RIGHT = {
    "rounds": ROUNDS,
    "finished": np.array(True),
    "values/pre/weighted": np.zeros(3),
    "values/clients/pre/correct": np.zeros(4),
    "entries/client": np.array([0, 1, 1, 0]),
    "entries/starts": np.array([0, 2, 3, 4]),
    "partition/train_counts": np.array([[3, 0], [1, 2]]),
}
SCORE = {
    "unit": "%",
    "better": "up",
    "recorded": {"mean": "own"},
}
HEADER = {
    "client_count": "2",
    "config": json.dumps(CONFIG),
    "primary": '"pre"',
    "scores": json.dumps({"own": SCORE}),
}


def write(folder, datasets, header):
    (folder / "metrics.h5").write_bytes(
        hdf5.seal("metrics", hdf5.encode(datasets, header))
    )
    return folder / "metrics.h5"


def refused(path):
    with pytest.raises(Damaged) as caught:
        results.load(path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200
    with pytest.raises(UserError, match=r"metrics\.h5: damaged, left out"):
        results.read(path.parent)


def test_what_is_right_is_read(tmp_path):
    found = results.load(write(tmp_path, RIGHT, HEADER))
    assert found.header == {
        "config": CONFIG,
        "primary": "pre",
        "scores": {"own": SCORE},
    } and found.rounds.tolist() == [1, 2, 3]
    assert found.static["train_counts"].tolist() == [[3, 0], [1, 2]]


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("rounds", ROUNDS[::-1]),
        ("rounds", np.array([1, 1, 2])),
        ("rounds", np.array([-1, 1, 2])),
        ("rounds", np.array([1, 2, -(2**63)])),
        ("rounds", ROUNDS * 1.0),
        ("rounds", ROUNDS.astype(np.uint64)),
        ("rounds", ROUNDS[:, None]),
        ("rounds", np.array(1)),
        ("values/pre/weighted", np.zeros(4)),
        ("values/pre/weighted", np.array(1.0)),
        ("values/pre/weighted", np.zeros((3, 2))),
        ("values/clients/pre/correct", np.zeros(3)),
        ("values/clients/pre/correct", np.zeros((4, 1))),
        ("values/clients/pre/correct", np.zeros((3, 2))),
        ("values/clients/pre/total", np.zeros(5)),
        ("entries/client", np.array([1, 0, 1, 0])),
        ("entries/client", np.array([0, 0, 1, 0])),
        ("entries/client", np.array([0, 2, 1, 0])),
        ("entries/client", np.array([-1, 1, 1, 0])),
        ("entries/client", np.array([0, 1, 1])),
        ("entries/client", np.array([0.0, 1, 1, 0])),
        ("entries/client", np.array([[0, 1], [1, 0]])),
        ("entries/starts", np.array([0, 2, 3])),
        ("entries/starts", np.array([0, 3, 2, 4])),
        ("entries/starts", np.array([1, 2, 3, 4])),
        ("entries/starts", np.array([0, 2, 3, 5])),
        ("entries/starts", np.array([0.0, 2, 3, 4])),
        ("partition/train_counts", np.zeros((2, 2))),
        ("partition/train_counts", np.array([1, 2])),
        ("partition/train_counts", np.array([[-1, 2]])),
        ("partition/train_counts", np.zeros((0, 3), np.int64)),
        ("partition/test_counts", np.zeros((2, 2), np.int64)),
    ],
)
def test_a_wrong_array_is_one_line(tmp_path, name, array):
    refused(write(tmp_path, RIGHT | {name: array}, HEADER))


@pytest.mark.parametrize("missing", ["rounds", "entries/client", "entries/starts"])
def test_a_missing_array_is_one_line(tmp_path, missing):
    datasets = {name: array for name, array in RIGHT.items() if name != missing}
    refused(write(tmp_path, datasets, HEADER))


@pytest.mark.parametrize(
    "header",
    [
        {"config": "[1]"},
        {"config": "{}"},
        {"config": "{"},
        {"config": json.dumps(CONFIG | {"rounds": "many"})},
        {"config": json.dumps(CONFIG | {"method": None})},
        {"primary": "3"},
        {"other": "NaN"},
        {"other": "[" * 100_000},
        {"other": "[" * 300 + "]" * 300},
        {"other": "9" * 5000},
        {"client_count": "1"},
        {"client_count": "-2"},
        {"client_count": "2.0"},
        {"client_count": '"2"'},
        {"client_count": "3"},
        {"completed": "3"},
        {"completed": "[-1]"},
        {"completed": "[1.5]"},
        *(
            {"scores": json.dumps({"own": SCORE | wrong})}
            for wrong in (
                {"unit": 3},
                {"unit": 21 * "x"},
                {"better": "higher"},
                {"recorded": {}},
                {"recorded": {"mean": 1}},
            )
        ),
    ],
)
def test_a_wrong_header_is_one_line(tmp_path, header):
    refused(write(tmp_path, RIGHT, HEADER | header))


@pytest.mark.parametrize(
    "names",
    [
        '{"a": 1}',
        '["a"]',
        '[["values/a"]]',
        '[["values/a", "values/b"]]',
        "[[], []]",
        "[[1, 2]]",
    ],
)
def test_wrong_names_of_values_that_lie_together_are_one_line(tmp_path, names):
    refused(
        write(
            tmp_path,
            RIGHT | {"packed/0": np.array(2.0) if "b" in names else np.zeros((2, 3))},
            {"packed": names},
        )
    )


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir]
)
def test_results_that_are_no_file_are_one_line(tmp_path, plant):
    plant(tmp_path / "metrics.h5")
    refused(tmp_path / "metrics.h5")


def test_results_through_a_link_are_not_read(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "metrics.h5").symlink_to(write(tmp_path / "other", RIGHT, HEADER))
    refused(tmp_path / "metrics.h5")


def parts(folder, first, second):
    for i, values in enumerate((first, second)):
        path = folder / results.ROUNDS / f"{i}.h5"
        path.parent.mkdir(exist_ok=True)
        length = len(next(iter(values.values())))
        path.write_bytes(
            results.encode(
                results.Results(rounds=np.arange(length) + 1000 * i, values=values)
            )
        )


def test_files_of_different_runs_are_one_line(tmp_path):
    write(tmp_path, RIGHT, HEADER)  # of two clients
    for name in ("a", "pre/correct"):
        parts(tmp_path, {"b": np.zeros(2)}, {f"clients/{name}": np.zeros((1, 4))})
        with pytest.raises(
            UserError,
            match="not of one run: one file is of 2 clients, another of 4",
        ):
            results.read(tmp_path)


@pytest.mark.slow
def test_small_files_do_not_make_huge_results(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcfl.storage.results_form.LIMIT", 8 * 1001 * 1001)
    parts(tmp_path, {"a": np.zeros(999)}, {f"b{i}": np.zeros(1) for i in range(1000)})
    assert len(results.read(tmp_path).rounds) == 1000
    parts(tmp_path, {"a": np.zeros(1000)}, {f"b{i}": np.zeros(1) for i in range(1001)})
    with pytest.raises(UserError, match="more than the 8,016,008 that a run may have"):
        results.read(tmp_path)
