"""The page of counts says what the code counts."""

from pathlib import Path

import pandas
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def counts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "launch" / "papers"))
    import counts

    return counts


def test_the_page_has_what_is_counted(counts):
    reported = pandas.read_csv(counts.REPORTED)
    page = (ROOT / "results" / "counts" / "README.md").read_text(encoding="utf-8")
    assert counts.HEAD in page
    assert counts.blended(reported) in page
    assert counts.operations(reported) in page
