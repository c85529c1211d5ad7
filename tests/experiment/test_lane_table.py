"""Table of lanes: read from a file, recorded in the configuration, and used."""

import copy
import hashlib
import json

import pytest
import tiny
from refusals import expect_refusal

ROW = {
    "model": "mlp",
    "precision": "float32",
    "lanes": 4,
    "form": "grouped",
    "seconds_per_sample": 1.0e-5,
    "peak_bytes": 3 << 30,
}


def table(*rows):
    """Return a table with a row for each dictionary of changes of ROW."""
    found = [{**ROW, **changes} for changes in rows]
    return {"format": 1, "device": "NVIDIA H200", "torch": "2.13.0", "rows": found}


def parse(lane_table, **runtime):
    sections = {"runtime": {**runtime, "lane_table": lane_table}}
    return tiny.parse("fedavg", **sections)


def test_a_resolved_configuration_has_the_rows_that_the_run_may_use(tmp_path):
    others = [{"model": "cnn"}, {"precision": "bf16"}, {"lanes": 20}]
    file = tmp_path / "lanes.json"
    file.write_text(json.dumps(table({}, *others)))
    found = parse(str(file))
    recorded = found.resolved()["runtime"]["lane_table"]
    assert recorded == {
        **table({}, {"lanes": 20}),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    file.unlink()  # the run is repeated without it
    assert parse(recorded) == found
    plain = tiny.parse("fedavg")
    assert found.fingerprint() == plain.fingerprint()


def test_the_rows_are_those_of_the_precision():
    rows = {"precision": "float32"}, {"precision": "tf32"}, {"precision": "bf16"}
    for precision, row in zip(("exact", "tf32", "bf16"), rows, strict=True):
        (kept,) = parse(table(*rows), precision=precision).runtime.lane_table.rows
        assert kept.precision == row["precision"]


def test_the_fastest_row_that_fits_is_chosen():
    timed = parse(
        table(
            {"lanes": 1, "seconds_per_sample": 4e-5},
            {"lanes": 4, "seconds_per_sample": 2e-5},
            {"lanes": 8, "seconds_per_sample": 2e-5},
            {"lanes": 8, "seconds_per_sample": 3e-5, "form": "loop"},
            {"lanes": 20, "seconds_per_sample": 1e-5, "form": "loop"},
        )
    ).runtime.lane_table

    def chosen(most, form=None):
        row = timed.find_fastest(most, form)
        return row and (row.lanes, row.form)

    assert chosen(64) == (20, "loop")
    assert chosen(19) == (8, "grouped")  # as fast as 4, and more
    assert chosen(7) == (4, "grouped")
    assert chosen(64, "grouped") == (8, "grouped")
    assert chosen(10, "loop") == (8, "loop")
    assert chosen(7, "loop") is None


def change(key, value, place="row"):
    """Return a table with another value of one key, or without it."""
    found = copy.deepcopy(table({}))
    keys = found if place == "table" else found["rows"][0]
    if value is None:
        del keys[key]
    else:
        keys[key] = value
    return found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (change("lane", 4), r"'rows\.0\.lane'; .*lanes"),
        (change("lanes", None), r"'rows\.0\.lanes' "),
        (change("lanes", 0), r"rows\.0\.lanes = 0: "),
        (change("form", "loops"), r"rows\.0\.form = 'loops': .*'grouped' or 'loop'"),
        (change("precision", "fp8"), r"rows\.0\.precision = 'fp8'"),
        (change("seconds_per_sample", -1.0), r"rows\.0\.seconds_per_sample"),
        (change("format", 2, "table"), "format = 2: "),
        ([], "runtime.lane_table = .*: .*"),
    ],
)
def test_an_invalid_table_is_refused_in_one_line(given, words, tmp_path):
    file = tmp_path / "lanes.json"
    file.write_text(json.dumps(given))
    for source in (given, str(file)):
        with expect_refusal(words) as error:
            parse(source)
        (line,) = error.value.args
        assert "runtime.lane_table" in line and "\n" not in line


@pytest.mark.parametrize("text", [None, "{", '{"format": 1, "format": 1}'])
def test_an_unreadable_file_is_refused_in_one_line(text, tmp_path):
    file = tmp_path / "lanes.json"
    if text is not None:
        file.write_text(text)
    with expect_refusal(r"lanes\.json': ") as error:
        parse(str(file))
    assert len(error.value.args) == 1
