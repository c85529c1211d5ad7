"""Sections on updates that exclude one another in a later cell of a sweep."""

import pytest
import tiny
from playing import run_table
from refusals import expect_refusal

from hpcfl.commands.cell_updates import refuse_conflicts
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
def test_the_cell_is_named(wrong, words):
    with expect_refusal(rf"^cell 2: .*{words}") as error:
        refuse_conflicts(parse_cells({}, FINE, wrong, wrong))
    assert len(error.value.args) == 1


def test_no_cell_runs(tmp_path):
    table = tiny.table(UNIFORM, aggregation={"rule": "krum"})
    table["sweep"] = {"aggregation.f": [1, 2]}
    with expect_refusal(r"f=2: .*it needs 7 rows"):
        run_table(table, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()
