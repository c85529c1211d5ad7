"""The page of counts says what the code counts."""

import os
from pathlib import Path

import counts
import pandas
import pytest

from hpcfl.experiment import sections

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "counts"
PAGE = FOLDER / "details.md"


def test_the_page_has_what_is_counted():
    reported = pandas.read_csv(counts.REPORTED)
    page = PAGE.read_text("utf-8")
    assert counts.DETAILS in page
    assert (FOLDER / "README.md").read_text("utf-8") == f"{counts.HEAD}\n"
    assert counts.blended(reported) in page
    assert counts.operations(reported) in page


@pytest.mark.slow
def test_the_page_has_what_travels():
    assert counts.floats(pandas.read_csv(counts.REPORTED)) in PAGE.read_text("utf-8")


@pytest.mark.slow
def test_the_page_has_the_classes_that_clients_hold(need_data):
    """It is skipped where the data set is not at hand."""
    need_data(sections.Data(dataset="cifar-100"))
    root = Path(os.environ["HPCFL_DATA"])
    held = counts.classes_held(pandas.read_csv(counts.REPORTED), root)
    assert held in PAGE.read_text("utf-8")
