"""The pages of the papers' numbers agree with the code's counts and with the runs."""

import os
from pathlib import Path

import counts
import pandas
import pytest
from places import ROOT

from hpcfl.experiment import sections
from hpcfl.experiment.experiment_file import parse_override

FOLDER = ROOT / "results" / "counts"
PAGE = FOLDER / "details.md"


def test_the_page_contains_the_counted_numbers():
    reported = pandas.read_csv(counts.REPORTED)
    page = PAGE.read_text("utf-8")
    assert counts.DETAILS in page
    summary = (FOLDER / "README.md").read_text("utf-8")
    assert summary == f"{counts.summarise(reported)}\n"
    assert counts.render_blended(reported) in page
    assert counts.render_operations(reported) in page


def test_the_list_has_the_numbers_of_all_runs():
    """Each accuracy is recomputed from the list of its runs, without the code of the
    table.
    """
    rows = pandas.read_csv(counts.REPORTED)
    played = rows[rows["run"] == "yes"]
    lists = {path: pandas.read_csv(ROOT / path) for path in played["source"].unique()}
    for row in played.itertuples():
        runs = lists[row.source]
        for word in row.setting.split():
            key, value = parse_override(word)
            if key in runs:
                runs = runs[runs[key] == value]
        assert len(runs) == row.runs
        assert row.ours == pytest.approx(100 * runs["best"].mean(), abs=0.0006)
        assert row.difference == pytest.approx(row.ours - row.value, abs=0.0011)


def test_every_number_has_a_reason_or_a_value_of_ours():
    rows = pandas.read_csv(counts.REPORTED)
    computed = rows["run"].isin(["yes", "shortened", "counted"])
    assert set(rows["run"]) <= counts.STATUSES.keys()
    assert (rows["ours"].notna() == computed).all()


@pytest.mark.slow
def test_the_page_contains_the_counted_floats():
    assert counts.render_floats(pandas.read_csv(counts.REPORTED)) in PAGE.read_text(
        "utf-8"
    )


@pytest.mark.slow
def test_the_page_has_the_classes_that_clients_hold(need_data):
    """The test is skipped if the data set is missing."""
    need_data(sections.Data(dataset="cifar-100"))
    root = Path(os.environ["HPCFL_DATA"])
    reported = pandas.read_csv(counts.REPORTED)
    numbers = counts.count_classes(reported, root)
    held = counts.render_classes(reported, numbers)
    assert held in PAGE.read_text("utf-8")
