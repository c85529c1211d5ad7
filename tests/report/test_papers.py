"""Output after each file of the papers, with synthetic results."""

from pathlib import Path

import made_up
import numpy as np
import pytest
from papers import PAPERS, find_repetitions, read_paper
from recorded import sparse

from hpcfl.experiment import config
from hpcfl.report import sweep_table
from hpcfl.report.arrangement import arrange
from hpcfl.report.metric_values import Reading
from hpcfl.storage.results import Results
from hpcfl.trained.run import Run

ASKED = {
    "fednh-1": [
        "global/weighted",
        "post/pm_v",
        "post/pm_l",
        "tuned/pm_l",
        "post/pm_l_std",
    ]
}


NUMBERS = ("weighted", "mean", "std", "worst_tenth", "pm_v", "pm_l", "pm_l_std", "loss")


def play_none(name: str, cell: config.Config, number: int) -> Run:
    """Return a finished run of three rounds with the columns of its method, without
    ``global`` if the method has none.
    """
    method = type(cell.method)
    columns = {"pre", "post", method.primary}
    if method.family == "one global model":
        columns.add("global")
    values = {"final": np.array([0, 0, 0, 1]), "seconds/round": np.ones(4)}
    for column in columns:
        for metric in NUMBERS:
            series = np.linspace(0.1, 0.5, 4) + number / 1e5
            series[-1 if column == "post" else 0] = np.nan
            values[f"{column}/{metric}"] = series
        values[f"{column}/clients"] = np.full(4, float(cell.partition.clients))
    results = Results(
        {"primary": method.primary}, {}, np.arange(1, 5), sparse(values), [3]
    )
    return made_up.summed_up(Path(name), cell.resolved(), results)


@pytest.mark.slow
@pytest.mark.parametrize("path", PAPERS, ids=[path.stem for path in PAPERS])
def test_each_entry_of_a_papers_table_is_one_experiment(path):
    """Each experiment has two repetitions, which are tabulated as five are."""
    cells, repetitions = read_paper(path)
    runs = [
        play_none(name, cell, number)
        for number, (name, cell) in enumerate(cells.items())
    ]
    for metric in ("", *ASKED.get(path.stem, ())):
        found = sweep_table.make(arrange(runs), Reading(metric)).numbers
        assert found["runs"].sum() == len(runs)
        assert set(found["runs"]) == {repetitions}


@pytest.mark.parametrize(
    "path",
    [path for path in PAPERS if path.stem.startswith("diversifed")],
    ids=lambda path: path.stem,
)
def test_diversifeds_five_runs_have_different_seeds_and_partitions(path):
    """Its spreads over runs show that each run drew its data again."""
    pairs = [
        (repetition["seed"], repetition["partition"]["seed"])
        for repetition in find_repetitions(config.read(path))
    ]
    assert len(pairs) == len(set(pairs)) == len({drawn for _, drawn in pairs}) == 5
