"""A table of DiversiFed's accuracies beside runs of it: ``python
launch/papers/beside_paper.py RUNS TABLE REFERENCE OUT``, such as ``runs.tar.xz I
method.name=local results/diversifed``.

RUNS, a folder or a packed file, has runs of ``launch/papers``, TABLE is a table's number
in ``results/reported.csv``, and REFERENCE names the key that the table compares and the
value beside which the others stand. Written are ``OUT/table-TABLE.csv``, a line for each
finished run with its digest (a run that RUNS does not have keeps the line that it had),
and the table in the page of OUT that has its two comments.

The paper reports best rounds (methods-1.md §7, item 8), so the difference and the places
are theirs. Places go by the mean gain on the reference in the same runs, so that a cell
with fewer runs than others is not placed by the data that those drew. ± of an accuracy
is the sample standard deviation over runs with redrawn data. The paper's ± is over five
runs and is read as the population's. ± of a difference is its standard error, which both
deviations make; a single run's deviation is taken to be the paper's. All cells share a
run's data. Differences to the reference in the same runs therefore say more than the
accuracies do. Their intervals of 95 % are Student's; a single run has none.
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
    """Write the list of runs, and the table of all cells that it and the paper have."""
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
    """The paper's numbers in a table: a column for each key of their settings, their
    ``value`` and ``std`` in percent, and the ``row`` of each in ``REPORTED``.
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
    """The keys in which cells differ."""
    settings = cells.filter(regex=r"\.")
    return list(settings.columns[settings.nunique() > 1])


def cell(run: Run, reported: pandas.DataFrame, keys: list[str]) -> dict[str, Any]:
    """The cell of the table that a run is, by the keys in which cells differ."""
    own = flat(run.config)
    settings = reported.drop(columns=["value", "std", "row"]).to_dict("records")
    for setting in settings:
        if setting.items() <= own.items():
            return {key: setting[key] for key in keys}
    sys.exit(f"{run.folder}: no cell of this table has its settings")


def line(run: Run) -> dict[str, Any]:
    """Return the listed values of a run, accuracies in [0, 1]."""
    return {
        "seed": run.config["seed"],
        "rounds": run.summary.rounds,
        "column": run.score,
        "best": metric_values.value(run, run.metric, "best").value,
        "tail": metric_values.value(run, run.metric, "tail").value,
        "digest": run.summary.digest,
    }


def compare(
    frame: pandas.DataFrame, number: str, reference: str
) -> list[pandas.DataFrame]:
    """The numbers of all cells that have runs in ``frame``, in the paper's order: a frame
    for the cells that differ in the compared key alone.
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
    """The table in Markdown: cells that differ in the compared key alone stand together,
    in the paper's order.
    """
    compared, value = experiment_file.split(reference)
    groups = compare(frame, number, reference)
    played = varying(pandas.concat(groups))
    keys = varying(of_paper(number))
    named = [key for key in keys if key != compared and key in played]
    labels = [*named, compared]
    lines = pandas.concat([shown(group, labels, value) for group in groups])
    words = len(labels) + 1  # the columns that stand left, the others are numbers
    rule = ["---"] * words + ["---:"] * (len(lines.columns) - words)
    rows = [lines.columns, rule, *lines.itertuples(index=False)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + "".join(
        order(group, named) for group in groups
    )


def beside(
    cells: pandas.DataFrame, frame: pandas.DataFrame, compared: str, reference: Any
) -> pandas.DataFrame:
    """The numbers of ``cells``, which differ in ``compared`` alone, from their runs in
    ``frame``; all in percent or points.
    """
    if reference not in set(cells[compared]):
        sys.exit(f"{compared}={reference}: no run of it that others could stand beside")
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
    rounded = cells["best_gain"].round(9)  # so that equal gains share a place
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
    """The lines of the table as they are printed."""
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
    """Each value with its error, or alone where that is NaN."""
    return [
        f"{value:{sign}.2f}" + (f" ± {error:.2f}" if error == error else "")
        for value, error in zip(values, errors, strict=True)
    ]


def order(numbers: pandas.DataFrame, labels: list[str]) -> str:
    """Describe the rank correlation with the paper; return "" for fewer than three."""
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
