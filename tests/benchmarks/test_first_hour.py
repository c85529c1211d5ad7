"""The rows of gpu.sh at a hundredth of their size, on a CPU."""

import json
import math

import first_hour
import pytest
import torch
from first_hour import Place, Row


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path, "cpu", 0.01)
    first_hour.make_data(found)
    return found


@pytest.mark.slow
def test_each_kind_of_row_has_numbers(place):
    rows = [*first_hour.list_rows(place)]
    assert {row.kind for row in rows} == {
        "lanes",
        "by_hand",
        "resume",
        "transfers",
        "product",
    }
    for row in rows:
        if row.kind != "resume" and row.arguments.get("model") != "cnn":
            found = first_hour.KINDS[row.kind](place, **row.arguments)
            assert found and all(math.isfinite(value) for value in found.values())


@pytest.mark.slow
def test_a_row_ends_at_its_time_limit_and_the_next_one_follows(place, capfd):
    endless = Row("lanes", {"model": "mlp", "precision": "exact", "lanes": 1}, 1.1)
    assert first_hour.run_rows(place, 1.0, [endless, Row("none", {})]) == 1
    written = json.loads((place.out / "gpu.json").read_text())["rows"]
    assert "more than 1 s" in written[endless.name]["failure"]
    assert "log.txt" in written["none"]["failure"]
    assert "KeyError" in (place.out / "log.txt").read_text()
    assert endless.name in (place.out / "gpu.md").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_one_line_says_that_there_is_no_gpu(tmp_path, capfd):
    assert first_hour.main(["--out", str(tmp_path / "out")]) == 2
    printed = capfd.readouterr()
    assert "offers no GPU" in printed.err and len(printed.err.splitlines()) == 1
    assert not printed.out and not (tmp_path / "out").exists()


def test_missing_packages_are_listed(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(first_hour, "NEEDED", ("json", "no_such_package"))
    assert first_hour.main(["--out", str(tmp_path / "out")]) == 2
    assert "lacks no_such_package" in capfd.readouterr().err
