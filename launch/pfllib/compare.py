"""Compare runs of PFLlib with the same runs of hpcfl.

    python launch/pfllib/compare.py collect FOLDER RUNS   # FOLDER: from play.py
    python launch/pfllib/compare.py                       # figure and table

The first command writes ``results/pfllib/pfllib.csv``: test accuracies before the
training of each round and after the last round. Both commands draw ``pfllib.png`` in the
same folder and print the table of its README.
"""

import json
import sys
from pathlib import Path

import pandas

import hpcfl
from hpcfl.report import lines
from hpcfl.report.figures import write
from hpcfl.report.sheet import Sheet

RESULTS = Path(__file__).parents[2] / "results" / "pfllib"
NUMBERS = RESULTS / "pfllib.csv"
ROUNDS = 10
PFLLIB, ALIKE, HPCFL = "PFLlib", "all-samples", "hpcfl"
METHODS = {
    "FedAvg": "fedavg",
    "Local": "local",
    "FedRep": "fedrep",
    "FedALA": "fedala",
    "FedDBE": "feddbe",
    "GPFL": "gpfl",
    "FedCP": "fedcp",
}
HEAD = """\
| method | seeds | PFLlib | hpcfl | difference | std. error | between seeds | largest | equal until round |
|---|---|---|---|---|---|---|---|---|
"""


def collect(folder: Path, runs: Path) -> pandas.DataFrame:
    """Return the accuracy on all test samples by code, method, seed and round.

    Args:
        folder: Folder with ``CODE-METHOD-SEED.json`` from ``play.py``.
        runs: Folder with the runs of ``curves.toml``. Their first round of FedDBE
            corresponds to PFLlib's training before its first counted round.
    """
    curves = []
    for file in sorted(folder.glob("*.json")):
        code, method, seed = file.stem.rsplit("-", 2)
        accuracy = json.loads(file.read_text(encoding="utf-8"))["accuracy"]
        curves.append((code, METHODS[method], int(seed), accuracy))
    for run in hpcfl.load(runs).values():
        accuracy = run.rounds()["pre/weighted"].tolist()
        method = run.config["method"]["name"]
        curves.append((HPCFL, method, run.config["seed"], accuracy))
    rows = [
        (code, method, seed, round, f"{score:.4f}")
        for code, method, seed, accuracy in curves
        for round, score in enumerate(accuracy[-ROUNDS - 1 :])
    ]
    names = ["code", "method", "seed", "round", "accuracy"]
    return pandas.DataFrame(rows, columns=names).sort_values(names[:4])


def select_curves(
    numbers: pandas.DataFrame, code: str, method: str
) -> pandas.DataFrame:
    """Return the accuracies in %, one row per round and one column per seed."""
    chosen = numbers[(numbers.code == code) & (numbers.method == method)]
    return 100 * chosen.pivot(index="round", columns="seed", values="accuracy")


def render_table(numbers: pandas.DataFrame, code: str) -> str:
    """Return the comparison of ``code`` and hpcfl in Markdown, one row per method.

    The columns are the accuracies in % after the last round; the difference, hpcfl minus
    ``code``, with its standard error over seeds; the standard deviation of ``code`` over
    seeds; the largest difference of means in a round; and the last round up to which all
    seeds have equal accuracies.
    """
    lines = []
    for name, method in METHODS.items():
        theirs = select_curves(numbers, code, method)
        if theirs.empty:
            continue
        ours = select_curves(numbers, HPCFL, method)[theirs.columns]
        difference = ours - theirs
        seeds = len(difference.columns)
        last = difference.loc[ROUNDS]
        error, spread = "–", "–"
        if seeds > 1:
            error = f"{last.std() / seeds**0.5:.1f}"
            spread = f"{theirs.loc[ROUNDS].std():.1f}"
        largest = difference.mean(axis=1).abs().max()
        alike = (difference == 0).all(axis=1)
        cells = [
            name,
            str(seeds),
            f"{theirs.loc[ROUNDS].mean():.1f}",
            f"{ours.loc[ROUNDS].mean():.1f}",
            f"{last.mean():+.1f}",
            error,
            spread,
            f"{largest:.1f}",
            str(alike.cumprod().sum() - 1),
        ]
        lines.append("| " + " | ".join(cells) + " |\n")
    return HEAD + "".join(lines)


def draw(numbers: pandas.DataFrame, sheet: Sheet) -> "object":
    """Draw one panel per method with the means of both codes over seeds and bands."""
    drawn = []
    for name, method in METHODS.items():
        for code, look in ((HPCFL, "fedavg"), (PFLLIB, "fedprox")):
            curves = select_curves(numbers, code, method)
            line = {
                "panel": name,
                "row": code,
                "method": look,
                "x": curves.index.astype(float),
                "mean": curves.mean(axis=1),
                "std": curves.std(axis=1).fillna(0),
                "runs": curves.shape[1],
            }
            drawn.append(pandas.DataFrame(line))
    axes = {"xlabel": "rounds", "ylabel": "test accuracy (%)"}
    return lines.draw(sheet, pandas.concat(drawn), None, **axes)


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        collected = collect(Path(sys.argv[2]), Path(sys.argv[3]))
        collected.to_csv(NUMBERS, index=False)
    numbers = pandas.read_csv(NUMBERS)
    write(RESULTS / "pfllib.png", lambda: draw(numbers, Sheet(width=7.5)))
    print(render_table(numbers, PFLLIB))
    print(render_table(numbers, ALIKE))
