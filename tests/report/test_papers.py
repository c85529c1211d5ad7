"""What is printed after every file of the papers, with results made up: nothing is
trained.
"""

from pathlib import Path

import numpy as np
import pytest

from hpcfl.experiment import config, sweep
from hpcfl.report import sweep_table
from hpcfl.report.sweep_table import Reading
from hpcfl.storage.metrics import counts
from hpcfl.storage.results import Results
from hpcfl.storage.run_status import RunStatus, Stage
from hpcfl.trained.run import Run, summarise

ROOT = Path(__file__).parents[2]
PAPERS = sorted((ROOT / "launch" / "papers").glob("*.toml"))
ASKED = {
    "fednh-1": [
        "global/weighted",
        "post/pm_v",
        "post/pm_l",
        "tuned/pm_l",
        "post/pm_l_std",
    ]
}
DONE = RunStatus(Stage.FINISHED, 3, 3, None, [], False, None)


def made_up(cell: sweep.Cell, number: int) -> Run:
    """A finished run of three rounds, its columns those of its method: no ``global``
    where there is none.
    """
    method = type(cell.config.method)
    columns = {"pre", "post", method.primary} | (
        {"global"} if method.family == "one global model" else set()
    )
    rounds, values = (
        np.arange(1, 5),
        {"final": np.array([0, 0, 0, 1]), "seconds/round": np.ones(4)},
    )
    for column in columns:
        for name in (
            "weighted",
            "mean",
            "std",
            "worst_tenth",
            "pm_v",
            "pm_l",
            "pm_l_std",
            "loss",
        ):
            series = np.linspace(0.1, 0.5, 4) + number / 1e5
            series[-1 if column == "post" else 0 :][:1] = np.nan
            values[f"{column}/{name}"] = series
        values[f"{column}/clients"] = np.full(4, float(cell.config.partition.clients))
    results = Results({"primary": method.primary}, {}, rounds, values, [3])
    table = cell.config.resolved()
    column, measure = counts(table["evaluation"], results)
    found = summarise(table, results, column, measure, DONE, [])
    return Run(Path(cell.name), found, table, results, column, measure.recorded, DONE)


def seeds(table):
    """The axis of a sweep along which experiments are repeated."""
    for values in table["sweep"].values():
        if isinstance(values, list) and "seed" in str(values[0]):
            return values
    return table["sweep"]["seed"]


@pytest.mark.slow
@pytest.mark.parametrize("path", PAPERS, ids=[path.stem for path in PAPERS])
def test_each_entry_of_a_papers_table_is_one_experiment(path):
    """With two repetitions of each experiment, which are tabulated as five are."""
    table = config.read(path)
    repetitions = 1
    if "seed" in str(table.get("sweep")):
        repetitions = 2
        del seeds(table)[2:]
    cells = sweep.expand(table, path.name)
    runs = [made_up(cell, number) for number, cell in enumerate(cells)]
    for metric in ("", *ASKED.get(path.stem, ())):
        found = sweep_table.make(runs, reading=Reading(metric)).numbers
        assert found["runs"].sum() == len(runs)
        assert set(found["runs"]) == {repetitions}


@pytest.mark.parametrize(
    "path",
    [path for path in PAPERS if path.stem.startswith("diversifed")],
    ids=lambda path: path.stem,
)
def test_diversifeds_five_runs_draw_their_data_anew(path):
    """Its spreads over runs are those of redrawn data."""
    pairs = [
        (repetition["seed"], repetition["partition"]["seed"])
        for repetition in seeds(config.read(path))
    ]
    assert len(pairs) == len(set(pairs)) == len({drawn for _, drawn in pairs}) == 5
