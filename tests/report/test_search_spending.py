"""Ratio of spent to budgeted gradients of tuned runs, read from a tuning's table."""

import math

import made_up
import pytest

from hpcfl.report import search_spending
from hpcfl.report.arrangement import arrange
from hpcfl.trained import loading


@pytest.fixture
def tuned(tmp_path):
    """Return a final run of FedAvg in a tuning's folder."""
    (tmp_path / "tune.json").write_text("{}")
    made_up.folder(tmp_path / "final" / "fedavg,tuned,seed=0", "fedavg", 0)
    return tmp_path


def share(folder):
    runs = [loading.load_run(*folder.glob("final/*"))]
    return search_spending.find_shares(arrange(runs)).get("fedavg")


def test_the_share_is_that_of_the_method(tuned):
    table = "method,trials,budget,spent\nlocal,2,100,50\nfedavg,2,100,236\n"
    (tuned / "tuned.csv").write_text(table)
    assert share(tuned) == pytest.approx(2.36)


@pytest.mark.parametrize(
    "table",
    [
        None,
        "",
        "method,budget,spent\nlocal,100,50\n",
        "method,budget,spent\nfedavg,0,50\n",
        "method,budget,spent\nfedavg,100\n",
        "method,budget,spent\nfedavg,nan,x\n",
        "method,budget,spent\nfedavg,1,inf\n",
        "\0",
        "x" * (2 << 20),
    ],
)
def test_the_share_is_nan_without_a_valid_table(tuned, table):
    if table is not None:
        (tuned / "tuned.csv").write_text(table)
    assert math.isnan(share(tuned))


def test_runs_outside_a_tuning_have_no_share(tuned):
    (tuned / "tune.json").unlink()
    assert share(tuned) is None
