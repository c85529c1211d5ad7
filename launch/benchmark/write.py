"""The tables of all methods: ``python launch/benchmark/write.py RUNS OUT``.

RUNS has folders of some of ``SETTINGS``, made by the file of that name beside this one;
their finished runs replace the setting's lines in ``OUT/runs.csv``, a line for each run
with its digest. Lines of settings that RUNS has no folder of stay as they are.
``OUT/SETTING.md``, the tables, are made of ``OUT/runs.csv`` and nothing else. A method
that lacks a seed is left out of a table, and named.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from hpcfl.report import summary
from hpcfl.report.summary import Run
from hpcfl.storage.moments import moments

# what a setting is, and its local epochs in a round
SETTINGS = {
    "dirichlet": ("20 clients, Dirichlet 0.1, everybody takes part", 1),
    "two-classes": (
        "40 clients with two classes each, DiversiFed's protocol, everybody takes part",
        10,
    ),
    "hundred": ("100 clients, Dirichlet 0.3, ten take part in a round", 5),
}
SEEDS = [1, 2, 3]
# The passes with a gradient, be it of a part of the model, that a client's defaults
# make over its training samples in a round: so many times the local epochs, and so many
# more. All other methods make the local epochs.
PASSES = {
    "apfl": (2, 0),
    "ditto": (1, 2),
    "fedala": (1, 0.8),  # blending weights, on 80 % of the samples
    "fedavg-c": (1, 10),
    "fedfomo": (0.8, 0),  # 20 % of the samples are held out
    "fedprox-c": (1, 10),
    "fedrep": (1, 5),  # the head
    "per-fedavg": (2, 0),
    "pfedme": (5, 0),
}
PERCENT = (
    "accuracy",
    "deviation",
    "ahead deviation",
    "spread",
    "worst tenth",
    "best",
)
# what clients train between a model's arrival and its scoring in a column that others
# have without
BEFORE = {
    ("fedavg-c", "pre"): "10 epochs",
    ("fedprox-c", "pre"): "10 epochs",
    ("fedala", "pre"): "blending",
    ("per-fedavg", "pre"): "one step",
    ("fedbabu", "tuned"): "5 epochs",
}


def main(runs: Path, out: Path) -> None:
    """Write the list of all runs, and of it the table of each setting."""
    out.mkdir(parents=True, exist_ok=True)
    listed = out / "runs.csv"
    frames = {}
    if listed.exists():
        before = pandas.read_csv(listed, dtype=str, keep_default_na=False)
        frames = dict(list(before.groupby("setting")))
    for setting in SETTINGS:
        if (runs / setting).is_dir():
            found = summary.load_all(runs / setting)
            rows = [row(run) for run in found if run.summary.finished]
            frames[setting] = pandas.DataFrame(rows)
            frames[setting].insert(0, "setting", setting)
    ordered = [frames[setting] for setting in SETTINGS if setting in frames]
    pandas.concat(ordered).to_csv(listed, index=False)
    for setting, text in pages(listed).items():
        (out / f"{setting}.md").write_text(text, encoding="utf-8")


def row(run: Run) -> dict[str, Any]:
    """What is kept of a run. Accuracies are in [0, 1], floats those of one client in a
    round.

    Seconds are the lowest tenth of the rounds': the runs have a shared machine, and
    rounds that are scored or wait for others say nothing of a method.
    """
    numbers = {
        name: run.results.values[f"{run.score}/{name}"].astype(float)
        for name in ("mean", "std", "worst_tenth")
    }
    rounds, down, up = (
        run.results.rounds,
        run.summary.floats_down,
        run.summary.floats_up,
    )
    seconds = run.results.values["seconds/round"][run.results.played]
    found = moments(rounds, numbers["mean"], float)
    assert found is not None and down is not None and up is not None
    tail = {name: float(values[found.tail].mean()) for name, values in numbers.items()}
    length = rounds[found.last] - rounds[found.tail[0]] + 1
    before = (rounds < rounds[found.tail[0]]) & (
        rounds >= rounds[found.tail[0]] - length
    )
    before &= np.isfinite(numbers["mean"])
    return {
        "method": run.summary.method,
        "seed": run.config["seed"],
        "rounds": run.summary.rounds,
        "column": run.score,
        "accuracy": tail["mean"],
        "spread": tail["std"],
        "worst tenth": tail["worst_tenth"],
        "best": float(np.nanmax(numbers["mean"])),
        "drift": tail["mean"] - float(numbers["mean"][before].mean())
        if before.any()
        else np.nan,
        "floats": down + up,
        "seconds": float(np.quantile(seconds, 0.1)),
        "digest": run.summary.digest,
    }


def pages(listed: Path) -> dict[str, str]:
    """The tables in Markdown of the runs in the file ``listed``, by setting."""
    runs = pandas.read_csv(listed)
    return {
        str(setting): page(str(setting), frame)
        for setting, frame in runs.groupby("setting")
    }


def page(setting: str, frame: pandas.DataFrame) -> str:
    """A setting's table in Markdown, the best method first."""
    what, epochs = SETTINGS[setting]
    seeds = frame.groupby("method")["seed"].apply(sorted)
    complete = [name for name, own in seeds.items() if own == SEEDS]
    lacking = sorted(set(seeds.index) - set(complete))
    if len(complete) < 2:
        return f"# {what}\n\nNot finished with all seeds.\n"
    frame = frame[frame["method"].isin(complete)].copy()
    frame["rank"] = frame.groupby("seed")["accuracy"].rank(ascending=False)
    frame["floats"] /= frame[frame["method"] == "fedavg"]["floats"].mean()
    local = frame[frame["method"] == "local"].set_index("seed")["accuracy"]
    frame["ahead"] = frame["accuracy"] - frame["seed"].map(local)
    by_method = frame.groupby("method")
    mean = by_method.mean(numeric_only=True)
    mean["deviation"] = by_method["accuracy"].std(ddof=0)
    mean["ahead deviation"] = by_method["ahead"].std()
    mean["seconds"] = by_method["seconds"].min()
    columns = by_method["column"].first()
    lines = [
        cells(str(name), columns[name], epochs, numbers)
        for name, numbers in mean.sort_values("accuracy", ascending=False).iterrows()
    ]
    heading = list(lines[0])
    rule = ["---" if name in ("method", "read") else "---:" for name in heading]
    table = [heading, rule, *(line.values() for line in lines)]
    text = [
        f"# {what}",
        "",
        *(f"| {' | '.join(line)} |" for line in table),
        "",
        "What the columns say, and what they do not, is in [README.md](README.md).",
        "",
    ]
    if lacking:
        text += [f"Not finished with all seeds: {', '.join(lacking)}.", ""]
    return "\n".join(text)


def cells(
    name: str, column: str, epochs: int, numbers: Mapping[str, float]
) -> dict[str, str]:
    """A line of a table, by heading."""
    percent = {key: f"{100 * numbers[key]:.2f}" for key in PERCENT}
    signed = {key: f"{100 * numbers[key]:+.2f}" for key in ("ahead", "drift")}
    times, more = PASSES.get(name, (1, 0))
    trained = BEFORE.get((name, column))
    return {
        "method": name,
        "read": f"{column}, after {trained}" if trained else column,
        "passes": f"{times * epochs + more:g}",
        "accuracy, %": f"{percent['accuracy']} ± {percent['deviation']}",
        "− Local": f"{signed['ahead']} ± {percent['ahead deviation']}",
        "rank": f"{numbers['rank']:.1f}",
        "spread": percent["spread"],
        "worst tenth": percent["worst tenth"],
        "best round": percent["best"],
        "drift": signed["drift"].replace("+nan", "–"),
        "floats": f"{numbers['floats']:.2f}",
        "seconds": f"{numbers['seconds']:.2f}",
    }


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
