"""Compare a table of DiversiFed's accuracies with runs: ``python
launch/papers/beside_paper.py RUNS TABLE REFERENCE OUT``, such as ``runs.tar.xz I
method.name=local results/diversifed``.

Arguments:

* RUNS: folder or archive with runs of ``launch/papers``;
* TABLE: number of a table in ``results/reported.csv``;
* REFERENCE: key that the table compares, with its reference value;
* OUT: folder of the results.

The command writes one line per finished run, with its digest, into ``OUT/table-TABLE.csv``.
Lines of runs that are missing in RUNS remain. It also writes the table into the page of OUT
that has the two comments of the table.

The numbers follow these rules:

* The paper reports the best round (methods-1.md §7, item 8), so the difference and the ranks
  use the best round.
* Cells are ranked by their mean gain over the reference in the same runs. The data of a seed
  therefore do not affect the rank of a cell with fewer runs.
* The ± of an accuracy is the sample standard deviation over runs with redrawn data. The
  paper's ± over five runs is interpreted as a population standard deviation.
* The ± of a difference is its standard error from both deviations. A single run uses the
  paper's deviation.
* All cells share the data of a run, so gains over the reference in the same runs are more
  precise than accuracies. Their 95 % intervals are Student's; a single run has none.
"""

import sys
from pathlib import Path
from typing import Any

import pandas
from scipy.stats import t as student

from hpcfl.experiment import experiment_file
from hpcfl.experiment.experiment_file import flatten
from hpcfl.report import metric_values
from hpcfl.trained import loading
from hpcfl.trained.run import Run

REPORTED = Path(__file__).parents[2] / "results" / "reported.csv"
PAPERS_RUNS = 5


def main(runs: Path, number: str, reference: str, out: Path) -> None:
    """Write the list of runs and the table of all cells with runs.

    Args:
        runs: Folder or archive with runs.
        number: Number of the table.
        reference: Compared key and its reference value, ``key=value``.
        out: Folder of the results.
    """
    reported = read_paper(number)
    keys = find_varying_keys(reported)
    listed = out / f"table-{number}.csv"
    frame = pandas.DataFrame(
        [
            {**find_cell(run, reported, keys), **summarize_run(run)}
            for run in loading.list_runs(runs)
            if run.summary.finished
        ]
    )
    if listed.exists():
        frame = pandas.concat([frame, pandas.read_csv(listed)])
    identity = [*keys, "seed"]
    frame = frame.drop_duplicates(identity).sort_values(identity)
    frame.to_csv(listed, index=False)
    begin = f"<!-- table {number}: written by launch/papers/beside_paper.py -->"
    pages = sorted(out.glob("*.md"))
    page = next(one for one in pages if begin in one.read_text(encoding="utf-8"))
    end = f"<!-- end of table {number} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    table = render_table(frame, number, reference)
    page.write_text(f"{before}{begin}\n\n{table}\n{end}{after}", encoding="utf-8")


def read_paper(number: str) -> pandas.DataFrame:
    """Return the numbers of a table of the paper.

    The columns are the keys of the settings, ``value`` and ``std`` in percent, and ``row``, the
    index of the row in ``REPORTED``.
    """
    reported = pandas.read_csv(REPORTED)
    reported = reported.query("paper == 'diversifed' and table == @number")
    settings = [
        dict(map(experiment_file.parse_override, setting.split()))
        for setting in reported["setting"]
    ]
    frame = pandas.DataFrame(settings)
    return frame.assign(
        value=reported["value"].to_numpy(),
        std=reported["std"].to_numpy(),
        row=reported.index,
    )


def find_varying_keys(cells: pandas.DataFrame) -> list[str]:
    """Return the keys with different values in different cells."""
    settings = cells.filter(regex=r"\.")
    return list(settings.columns[settings.nunique() > 1])


def find_cell(run: Run, reported: pandas.DataFrame, keys: list[str]) -> dict[str, Any]:
    """Return the cell of a run, as values of the varying keys."""
    own = flatten(run.config)
    settings = reported.drop(columns=["value", "std", "row"]).to_dict("records")
    for setting in settings:
        if setting.items() <= own.items():
            return {key: setting[key] for key in keys}
    sys.exit(f"{run.folder}: the table has no cell with the settings of this run")


def summarize_run(run: Run) -> dict[str, Any]:
    """Return the line of a run in the list, with accuracies in [0, 1]."""
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
    """Return the numbers of all cells with runs, in the order of the paper.

    Args:
        frame: List of runs.
        number: Number of the table.
        reference: Compared key and its reference value, ``key=value``.

    Returns:
        One frame per group of cells that differ only in the compared key.
    """
    compared, value = experiment_file.parse_override(reference)
    reported = read_paper(number)
    keys = find_varying_keys(reported)
    cells = reported.merge(frame[keys].drop_duplicates())
    shared = [key for key in keys if key != compared]
    return [
        compute_numbers(group, frame.merge(group[keys]), compared, value)
        for _, group in cells.groupby(shared, sort=False)
    ]


def render_table(frame: pandas.DataFrame, number: str, reference: str) -> str:
    """Return the table in Markdown, in the order of the paper.

    Cells that differ only in the compared key form a group of rows.
    """
    compared, value = experiment_file.parse_override(reference)
    groups = compare(frame, number, reference)
    varying = find_varying_keys(pandas.concat(groups))
    keys = find_varying_keys(read_paper(number))
    named = [key for key in keys if key != compared and key in varying]
    labels = [*named, compared]
    lines = pandas.concat([format_rows(group, labels, value) for group in groups])
    words = len(labels) + 1  # number of left-aligned columns
    rule = ["---"] * words + ["---:"] * (len(lines.columns) - words)
    rows = [lines.columns, rule, *lines.itertuples(index=False)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + "".join(
        describe_order(group, named) for group in groups
    )


def compute_numbers(
    cells: pandas.DataFrame, frame: pandas.DataFrame, compared: str, reference: Any
) -> pandas.DataFrame:
    """Return the numbers of a group of cells in percent or percentage points.

    Args:
        cells: Cells that differ only in the compared key.
        frame: Runs of these cells.
        compared: Compared key.
        reference: Reference value of the key.
    """
    if reference not in set(cells[compared]):
        sys.exit(f"{compared}={reference}: RUNS has no run of the reference")
    cells = cells.set_index(compared, drop=False)
    runs = frame.groupby(compared).size()[cells.index]
    column = frame.groupby(compared)["column"].first()[cells.index]
    cells = cells.assign(runs=runs, column=column)
    for key in ("best", "tail"):
        accuracies = 100 * frame.pivot(index="seed", columns=compared, values=key)
        gains = accuracies.sub(accuracies[reference], axis="index")
        count = gains.count()
        cells[key] = accuracies.mean()
        cells[f"{key}_std"] = accuracies.std()
        cells[f"{key}_gain"] = gains.mean()
        cells[f"{key}_half"] = gains.sem() * student.ppf(0.975, count - 1)
    papers_error = cells["std"] ** 2 / (PAPERS_RUNS - 1)
    own_error = cells["best_std"] ** 2 / runs
    own_error = own_error.where(runs > 1, papers_error * PAPERS_RUNS)
    rounded = cells["best_gain"].round(9)  # equal gains share a rank
    return cells.assign(
        difference=cells["best"] - cells["value"],
        error=(own_error + papers_error) ** 0.5,
        rank=rounded.rank(ascending=False),
        papers_rank=cells["value"].rank(ascending=False),
        papers_gain=cells["value"] - cells["value"][reference],
    )


def format_rows(
    numbers: pandas.DataFrame, labels: list[str], reference: Any
) -> pandas.DataFrame:
    """Return the formatted rows of a group of cells."""
    ranks = zip(numbers["rank"], numbers["papers_rank"], strict=True)
    gain = f"gain over {reference}"
    columns = {label: numbers[label].map(str) for label in labels}
    columns |= {
        "column": numbers["column"],
        "runs": numbers["runs"].map(str),
        "best round, %": format_pairs(numbers["best"], numbers["best_std"]),
        "paper, %": format_pairs(numbers["value"], numbers["std"]),
        "difference": format_pairs(numbers["difference"], numbers["error"], "+"),
        "rank, paper's rank": [f"{own:g}, {papers:g}" for own, papers in ranks],
        gain: format_pairs(numbers["best_gain"], numbers["best_half"], "+"),
        "paper's gain": numbers["papers_gain"].map("{:+.2f}".format),
        "last tenth, %": format_pairs(numbers["tail"], numbers["tail_std"]),
        f"{gain}, last tenth": format_pairs(
            numbers["tail_gain"], numbers["tail_half"], "+"
        ),
    }
    return pandas.DataFrame(columns)


def format_pairs(
    values: pandas.Series, errors: pandas.Series, sign: str = ""
) -> list[str]:
    """Return each value with its error, without an error that is NaN."""
    return [
        f"{value:{sign}.2f}" + (f" ± {error:.2f}" if error == error else "")
        for value, error in zip(values, errors, strict=True)
    ]


def describe_order(numbers: pandas.DataFrame, labels: list[str]) -> str:
    """Return a sentence on the rank correlation, "" for fewer than three cells."""
    close = numbers[numbers["difference"].abs() < 1]
    parts = [
        f"{some['rank'].corr(some['papers_rank'], method='spearman'):.2f} over {which}"
        for some, which in (
            (numbers, f"all {len(numbers)} cells"),
            (close, f"the {len(close)} cells with a difference below one point"),
        )
        if len(some) > 2
    ]
    if not parts:
        return ""
    where = "".join(f", {label}={numbers[label].iloc[0]}" for label in labels)
    return (
        f"\nSpearman's rank correlation with the paper, best round{where}: "
        f"{', '.join(parts)}.\n"
    )


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
