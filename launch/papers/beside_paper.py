"""Compare a table of DiversiFed's accuracies with runs: ``python
launch/papers/beside_paper.py RUNS TABLE REFERENCE OUT``, such as ``runs.tar.xz I
method.name=local results/diversifed``.

Arguments:

* RUNS: a folder or packed file with runs of ``launch/papers``;
* TABLE: number of a table in ``results/reported.csv``;
* REFERENCE: the key that the table compares, and its reference value;
* OUT: folder of the results.

The command writes ``OUT/table-TABLE.csv``, which has a line with the digest of each
finished run and keeps the lines of runs that RUNS lacks. It also writes the table into
the page of OUT that has the table's two comments.

The paper reports best rounds (methods-1.md §7, item 8), so the difference and the ranks
use best rounds. Ranks follow the mean gain over the reference in the same runs, so that
the data of the drawn seeds do not affect the rank of a cell with fewer runs. ± of an
accuracy is the sample standard deviation over runs with redrawn data. The paper's ± is
over five runs and is read as a population standard deviation. ± of a difference is its
standard error from both deviations; for a single run the paper's deviation is used. All
cells share a run's data, so differences to the reference in the same runs are more
precise than accuracies. Their 95 % intervals are Student's; a single run has none.
"""

import sys
from pathlib import Path
from typing import Any

import pandas
from scipy.stats import t as student

from hpcfl.experiment import experiment_file
from hpcfl.experiment.experiment_file import flat
from hpcfl.report import metric_values
from hpcfl.trained import loading
from hpcfl.trained.run import Run

REPORTED = Path(__file__).parents[2] / "results" / "reported.csv"
PAPERS_RUNS = 5


def main(runs: Path, number: str, reference: str, out: Path) -> None:
    """Write the list of runs, and the table of all cells that have runs.

    Args:
        runs: Folder or packed file with runs.
        number: Number of the table.
        reference: Compared key and its reference value, ``key=value``.
        out: Folder of the results.
    """
    reported = of_paper(number)
    keys = varying(reported)
    listed = out / f"table-{number}.csv"
    frame = pandas.DataFrame(
        [
            {**cell(run, reported, keys), **line(run)}
            for run in loading.list_runs(runs)
            if run.summary.finished
        ]
    )
    if listed.exists():
        frame = pandas.concat([frame, pandas.read_csv(listed)])
    of_a_run = [*keys, "seed"]
    frame = frame.drop_duplicates(of_a_run).sort_values(of_a_run)
    frame.to_csv(listed, index=False)
    begin = f"<!-- table {number}: written by launch/papers/beside_paper.py -->"
    pages = sorted(out.glob("*.md"))
    page = next(one for one in pages if begin in one.read_text(encoding="utf-8"))
    end = f"<!-- end of table {number} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    written = table(frame, number, reference)
    page.write_text(f"{before}{begin}\n\n{written}\n{end}{after}", encoding="utf-8")


def of_paper(number: str) -> pandas.DataFrame:
    """Return the paper's numbers in a table.

    Columns are the keys of the settings, ``value`` and ``std`` in percent, and ``row``,
    the row in ``REPORTED``.
    """
    reported = pandas.read_csv(REPORTED)
    reported = reported.query("paper == 'diversifed' and table == @number")
    settings = [
        dict(map(experiment_file.split, setting.split()))
        for setting in reported["setting"]
    ]
    frame = pandas.DataFrame(settings)
    return frame.assign(
        value=reported["value"].to_numpy(),
        std=reported["std"].to_numpy(),
        row=reported.index,
    )


def varying(cells: pandas.DataFrame) -> list[str]:
    """Return the keys in which cells differ."""
    settings = cells.filter(regex=r"\.")
    return list(settings.columns[settings.nunique() > 1])


def cell(run: Run, reported: pandas.DataFrame, keys: list[str]) -> dict[str, Any]:
    """Return the table cell of a run, as the values of the keys in which cells differ."""
    own = flat(run.config)
    settings = reported.drop(columns=["value", "std", "row"]).to_dict("records")
    for setting in settings:
        if setting.items() <= own.items():
            return {key: setting[key] for key in keys}
    sys.exit(f"{run.folder}: no cell of this table has its settings")


def line(run: Run) -> dict[str, Any]:
    """Return the values of a run for the list. Accuracies are in [0, 1]."""
    return {
        "seed": run.config["seed"],
        "rounds": run.summary.rounds,
        "column": run.score,
        "best": metric_values.read_value(run, run.metric, "best").value,
        "tail": metric_values.read_value(run, run.metric, "tail").value,
        "digest": run.summary.digest,
    }


def compare(
    frame: pandas.DataFrame, number: str, reference: str
) -> list[pandas.DataFrame]:
    """Return the numbers of all cells that have runs, in the paper's order.

    Args:
        frame: Listed runs.
        number: Number of the table.
        reference: Compared key and its reference value, ``key=value``.

    Returns:
        A frame for each group of cells that differ only in the compared key.
    """
    compared, value = experiment_file.split(reference)
    reported = of_paper(number)
    keys = varying(reported)
    cells = reported.merge(frame[keys].drop_duplicates())
    shared = [key for key in keys if key != compared]
    return [
        beside(alike, frame.merge(alike[keys]), compared, value)
        for _, alike in cells.groupby(shared, sort=False)
    ]


def table(frame: pandas.DataFrame, number: str, reference: str) -> str:
    """Return the table in Markdown, in the paper's order.

    Cells that differ only in the compared key form a group of rows.
    """
    compared, value = experiment_file.split(reference)
    groups = compare(frame, number, reference)
    played = varying(pandas.concat(groups))
    keys = varying(of_paper(number))
    named = [key for key in keys if key != compared and key in played]
    labels = [*named, compared]
    lines = pandas.concat([shown(group, labels, value) for group in groups])
    words = len(labels) + 1  # number of left-aligned columns; the others are numbers
    rule = ["---"] * words + ["---:"] * (len(lines.columns) - words)
    rows = [lines.columns, rule, *lines.itertuples(index=False)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + "".join(
        order(group, named) for group in groups
    )


def beside(
    cells: pandas.DataFrame, frame: pandas.DataFrame, compared: str, reference: Any
) -> pandas.DataFrame:
    """Return the numbers of a group of cells, in percent or points.

    Args:
        cells: Cells that differ only in the compared key.
        frame: Runs of these cells.
        compared: Compared key.
        reference: Reference value of the key.
    """
    if reference not in set(cells[compared]):
        sys.exit(f"{compared}={reference}: the reference has no run")
    cells = cells.set_index(compared, drop=False)
    runs = frame.groupby(compared).size()[cells.index]
    column = frame.groupby(compared)["column"].first()[cells.index]
    cells = cells.assign(runs=runs, column=column)
    for key in ("best", "tail"):
        accuracies = 100 * frame.pivot(index="seed", columns=compared, values=key)
        gains = accuracies.sub(accuracies[reference], axis="index")
        played = gains.count()
        cells[key] = accuracies.mean()
        cells[f"{key}_std"] = accuracies.std()
        cells[f"{key}_gain"] = gains.mean()
        cells[f"{key}_half"] = gains.sem() * student.ppf(0.975, played - 1)
    papers_error = cells["std"] ** 2 / (PAPERS_RUNS - 1)
    own_error = cells["best_std"] ** 2 / runs
    own_error = own_error.where(runs > 1, papers_error * PAPERS_RUNS)
    rounded = cells["best_gain"].round(9)  # equal gains share a rank
    return cells.assign(
        difference=cells["best"] - cells["value"],
        error=(own_error + papers_error) ** 0.5,
        place=rounded.rank(ascending=False),
        papers_place=cells["value"].rank(ascending=False),
        papers_gain=cells["value"] - cells["value"][reference],
    )


def shown(
    numbers: pandas.DataFrame, labels: list[str], reference: Any
) -> pandas.DataFrame:
    """Return the formatted rows of a group of cells."""
    places = zip(numbers["place"], numbers["papers_place"], strict=True)
    beside_reference = f"beside {reference}"
    columns = {label: numbers[label].map(str) for label in labels}
    columns |= {
        "column": numbers["column"],
        "runs": numbers["runs"].map(str),
        "best round, %": pairs(numbers["best"], numbers["best_std"]),
        "paper, %": pairs(numbers["value"], numbers["std"]),
        "difference": pairs(numbers["difference"], numbers["error"], "+"),
        "place, paper's": [f"{own:g}, {papers:g}" for own, papers in places],
        beside_reference: pairs(numbers["best_gain"], numbers["best_half"], "+"),
        "paper's": numbers["papers_gain"].map("{:+.2f}".format),
        "last tenth, %": pairs(numbers["tail"], numbers["tail_std"]),
        f"last tenth {beside_reference}": pairs(
            numbers["tail_gain"], numbers["tail_half"], "+"
        ),
    }
    return pandas.DataFrame(columns)


def pairs(values: pandas.Series, errors: pandas.Series, sign: str = "") -> list[str]:
    """Return each value with its error, or without it if the error is NaN."""
    return [
        f"{value:{sign}.2f}" + (f" ± {error:.2f}" if error == error else "")
        for value, error in zip(values, errors, strict=True)
    ]


def order(numbers: pandas.DataFrame, labels: list[str]) -> str:
    """Describe the rank correlation with the paper; "" for fewer than three cells."""
    close = numbers[numbers["difference"].abs() < 1]
    parts = [
        f"{some['place'].corr(some['papers_place'], method='spearman'):.2f} over {which}"
        for some, which in (
            (numbers, f"all {len(numbers)}"),
            (close, f"the {len(close)} that differ by less than a point"),
        )
        if len(some) > 2
    ]
    if not parts:
        return ""
    where = "".join(f", {label}={numbers[label].iloc[0]}" for label in labels)
    return (
        f"\nRank correlation (Spearman) of the best rounds' order with the paper's{where}: "
        f"{', '.join(parts)}.\n"
    )


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
