"""Sparse metrics of clients, and files of results: files with a correct checksum and
wrong content give one error line each, before results are computed from them.
"""

import json
import os

import numpy as np
import pytest
from recorded import sparse
from refusals import expect_refusal

from hpcfl.experiment import config
from hpcfl.files import hdf5
from hpcfl.files.atomic import Damaged
from hpcfl.storage import results
from hpcfl.storage.metrics import ResultsWriter
from hpcfl.storage.results import Metrics, Results

NAN = np.nan
# three rounds of four clients: clients 1 and 3 in the first, none in the second, then
# client 0, which has no b
SERIES = {
    "clients/a": np.array([[NAN, 1, NAN, 3], [NAN] * 4, [5, NAN, NAN, NAN]]),
    "clients/b": np.array([[-1, 2, -1, 4], [-1] * 4, [-1] * 4]),
}
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
    with expect_refusal(r"metrics\.h5: "):
        results.read(path.parent)


def test_a_valid_file_is_read(tmp_path):
    found = results.load(write(tmp_path, RIGHT, HEADER))
    assert found.header == {
        "config": CONFIG,
        "primary": "pre",
        "scores": {"own": SCORE},
    }
    assert found.rounds.tolist() == [1, 2, 3]
    assert found.static["train_counts"].tolist() == [[3, 0], [1, 2]]


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("rounds", np.array([1, 1, 2])),
        ("rounds", np.array([-1, 1, 2])),
        ("rounds", ROUNDS * 1.0),
        ("rounds", ROUNDS[:, None]),
        ("values/pre/weighted", np.zeros(4)),
        ("values/pre/weighted", np.zeros((3, 2))),
        ("values/clients/pre/correct", np.zeros(3)),
        ("entries/client", np.array([1, 0, 1, 0])),
        ("entries/client", np.array([0, 2, 1, 0])),
        ("entries/client", np.array([-1, 1, 1, 0])),
        ("entries/client", np.array([0, 1, 1])),
        ("entries/client", np.array([0.0, 1, 1, 0])),
        ("entries/starts", np.array([0, 3, 2, 4])),
        ("entries/starts", np.array([0, 2, 3, 5])),
        ("partition/train_counts", np.array([1, 2])),
        ("partition/train_counts", np.array([[-1, 2]])),
        ("partition/train_counts", np.zeros((0, 3), np.int64)),
        ("partition/test_counts", np.zeros((2, 2), np.int64)),
    ],
)
def test_a_wrong_array_is_refused(tmp_path, name, array):
    refused(write(tmp_path, RIGHT | {name: array}, HEADER))


@pytest.mark.parametrize("missing", ["rounds", "entries/client", "entries/starts"])
def test_a_missing_array_is_refused(tmp_path, missing):
    datasets = {name: array for name, array in RIGHT.items() if name != missing}
    refused(write(tmp_path, datasets, HEADER))


@pytest.mark.parametrize(
    "header",
    [
        {"config": "{}"},
        {"config": "{"},
        {"config": json.dumps(CONFIG | {"method": None})},
        {"primary": "3"},
        {"other": "NaN"},
        {"other": "[" * 100_000},
        {"other": "[" * 300 + "]" * 300},
        {"other": "9" * 5000},
        {"client_count": "1"},
        {"client_count": "2.0"},
        {"client_count": "3"},
        {"completed": "[-1]"},
        *(
            {"scores": json.dumps({"own": SCORE | wrong})}
            for wrong in (
                {"unit": 21 * "x"},
                {"better": "higher"},
                {"recorded": {"mean": 1}},
            )
        ),
    ],
)
def test_a_wrong_header_is_refused(tmp_path, header):
    refused(write(tmp_path, RIGHT, HEADER | header))


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir]
)
def test_results_that_are_no_file_are_refused(tmp_path, plant):
    plant(tmp_path / "metrics.h5")
    refused(tmp_path / "metrics.h5")


def parts(folder, first, second):
    for i, values in enumerate((first, second)):
        path = folder / results.ROUNDS / f"{i}.h5"
        path.parent.mkdir(exist_ok=True)
        length = len(next(iter(values.values())))
        part = Results(rounds=np.arange(length) + 1000 * i, values=sparse(values))
        path.write_bytes(results.encode(part))


@pytest.mark.parametrize("kind", ["bool", "uint8", "uint64"])
def test_a_missing_whole_number_of_any_type_is_minus_one(tmp_path, kind):
    write(tmp_path, RIGHT | {"values/a": np.ones(3, kind)}, HEADER)
    parts(tmp_path, {"b": np.zeros(1)}, {"b": np.zeros(1)})
    assert results.read(tmp_path).values["a"].tolist() == [-1, 1, 1, 1, -1]


def test_files_of_different_runs_are_refused(tmp_path):
    write(tmp_path, RIGHT, HEADER)  # of two clients
    parts(tmp_path, {"b": np.zeros(2)}, {"clients/a": np.zeros((1, 4))})
    with expect_refusal(r"2 clients.* 4$"):
        results.read(tmp_path)


@pytest.mark.slow
def test_small_files_do_not_make_huge_results(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "LIMIT", 8 * 501 * 501)
    parts(tmp_path, {"a": np.zeros(499)}, {f"b{i}": np.zeros(1) for i in range(500)})
    assert len(results.read(tmp_path).rounds) == 500
    parts(tmp_path, {"a": np.zeros(500)}, {f"b{i}": np.zeros(1) for i in range(501)})
    with expect_refusal(r"2,012,016 bytes.* 2,008,008 "):
        results.read(tmp_path)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_only_clients_that_have_a_number_are_entries():
    metrics = sparse({**SERIES, "c": np.arange(3)})
    assert metrics.starts.tolist() == [0, 2, 2, 3] and metrics.ids.tolist() == [1, 3, 0]
    assert metrics.entry_rounds.tolist() == [0, 0, 2]
    assert metrics.columns["clients/b"].tolist() == [2, 4, -1]
    same(metrics, {**SERIES, "c": np.arange(3)})
    turned = metrics.select_rounds([2, 0])
    same(turned, {name: array[[2, 0]] for name, array in metrics.items()})
    same(
        metrics.select_names(["c", "clients/a"]),
        {"c": np.arange(3), "clients/a": SERIES["clients/a"]},
    )


def test_rounds_of_several_parts_are_merged_in_order():
    """The first part has rounds 1 and 3 of a, the second round 2, and only the second
    has b.
    """
    first = Results(
        rounds=np.array([1, 3]),
        values=sparse({"clients/a": SERIES["clients/a"][[0, 2]]}),
    )
    second = Results(
        rounds=np.array([2]),
        values=sparse({"clients/b": np.array([[7, -1, -1, 8]])}),
    )
    found = results.merge([first, second])
    assert found.rounds.tolist() == [1, 2, 3]
    b = np.array([[-1] * 4, [7, -1, -1, 8], [-1] * 4])
    same(found.values, {"clients/a": SERIES["clients/a"], "clients/b": b})
    assert found.values.ids.tolist() == [1, 3, 0, 3, 0]


def test_metrics_of_some_and_of_all_clients_in_one_round():
    some = Metrics(
        {}, np.array([0, 1]), np.array([1]), {"clients/a": np.array([2.0])}, 3
    )
    found = results.make_round(4, {"clients/b": np.array([4, 5, 6]), "c": 1}, some)
    expected = {"c": [1], "clients/a": [[NAN, 2, NAN]], "clients/b": [[4, 5, 6]]}
    same(found.values, {name: np.array(of) for name, of in expected.items()})
    alone = results.make_round(4, {"c": 1}, some).values
    assert alone.ids.tolist() == [1] and alone["clients/a"].shape == (1, 3)


def test_an_array_of_all_clients_must_fit_into_memory(monkeypatch):
    metrics = sparse(SERIES)
    monkeypatch.setattr(results, "LIMIT", 8 * 3 * 4 - 1)
    with expect_refusal(r"'clients/a' .* 96 bytes.* 95$"):
        metrics["clients/a"]


def test_a_few_of_a_million_clients_make_small_files(tmp_path):
    writer = ResultsWriter(tmp_path, {}, {})
    asked = np.arange(0, 1_000_000, 10_007)
    for round in (1, 2):
        column = {"clients/a": asked * 1.0}
        starts = np.array([0, len(asked)])
        writer.record(round, {}, Metrics({}, starts, asked + round, column, 1_000_000))
        assert (tmp_path / "rounds" / f"{round:08d}.h5").stat().st_size < 10_000
    writer.merge()
    assert (tmp_path / "metrics.h5").stat().st_size < 15_000
    read = results.read(tmp_path).select_rounds([1])
    assert read.values.ids.tolist() == (asked + 2).tolist()
    assert read.values["clients/a"].shape == (1, 1_000_000)
