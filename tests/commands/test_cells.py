"""Cells of a sweep with sections that exclude one another, and with unusable data."""

import pytest
import tiny
from playing import run_table
from refusals import expect_refusal

from hpcfl.commands.cells import refuse_conflicts, try_data
from hpcfl.data import datasets
from hpcfl.experiment import config

UNIFORM = {"name": "fedavg", "weights": "uniform"}
KRUM = {"rule": "krum", "f": 1}
FINE = {"aggregation": {"rule": "median"}}


def parse_cells(*sections):
    tables = [tiny.table(UNIFORM, **section) for section in sections]
    return {f"cell {place}": config.parse(table) for place, table in enumerate(tables)}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"aggregation": {**KRUM, "f": 2}}, "f = 2 .* 7 rows"),
        (
            {"aggregation": KRUM, "privacy": {"unit": "client", "clip": 1.0}},
            "'krum': .*'mean'.* privacy.local = true",
        ),
        (
            {
                "privacy": {"unit": "client", "clip": 1.0, "accountant": "pld"},
                "participation": {"fraction": 0.4},
            },
            "'pld' .*'rdp'",
        ),
        ({"attack": {"kind": "alie", "clients": [0, 1, 2]}}, "'alie': .* z$"),
        (
            {"privacy": {"unit": "sample"}, "training": {"drop_last": True}},
            "unit = 'sample' .*training.drop_last = true",
        ),
    ],
)
def test_an_error_names_its_cell_once(wrong, words):
    with expect_refusal(rf"^cell 2: .*{words}") as error:
        refuse_conflicts(parse_cells({}, FINE, wrong, wrong))
    assert len(error.value.args) == 1


def test_an_invalid_cell_prevents_the_whole_sweep(tmp_path):
    table = tiny.table(UNIFORM, aggregation={"rule": "krum"})
    table["sweep"] = {"aggregation.f": [1, 2]}
    with expect_refusal(r"f=2: .*it needs 7 rows"):
        run_table(table, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_each_data_set_is_read_once_and_each_partition_drawn(monkeypatch):
    reads = []
    load = datasets.load
    monkeypatch.setattr(
        datasets,
        "load",
        lambda data, seed: reads.append(data.dataset) or load(data, seed),
    )
    found = parse_cells(
        {},
        {"seed": 5},
        {"data": {"dataset": "digits"}},
        {"data": {"dataset": "digits"}, "training": {"validation": 0.2}},
        {"data": {"dataset": "digits"}, "training": {"lr": 0.2}},
    )
    try_data(found, found["cell 0"])
    assert reads == ["digits"]


def test_the_cell_with_unusable_data_is_named(tmp_path):
    missing = {"dataset": "cifar-10", "root": str(tmp_path)}
    many = {"counts": [[10**6, 0, 0, 0]] * 5}
    for wrong in (
        {"data": missing},
        {"data": {"dataset": "digits"}, "partition": many},
    ):
        found = parse_cells({}, {"seed": 5}, wrong)
        with expect_refusal("^cell 2: "):
            try_data(found, found["cell 0"])
