"""The table of all methods from finished runs: ``python launch/benchmark/write.py RUNS OUT``.

RUNS has folders of some of ``SETTINGS``, made by the file of that name beside this one. Written are
``OUT/runs.csv``, a line for each run with its digest, and ``OUT/SETTING.md``, the tables; those of settings
that RUNS has no folder of stay as they are. A method that lacks a seed is left out of a table, and named.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from hpcfl.report import pairing, summary
from hpcfl.report.summary import Run
from hpcfl.storage.moments import moments

SETTINGS = {
    "dirichlet": "20 clients, Dirichlet 0.1, everybody takes part",
    "two-classes": "40 clients with two classes each, DiversiFed's protocol, everybody takes part",
    "hundred": "100 clients, Dirichlet 0.3, ten take part in a round",
}
SEEDS = [1, 2, 3]
AT = "tail"  # all numbers are means of the last tenth of the rounds, but for the best round's
PERCENT = ("accuracy", "spread", "worst tenth", "best", "drift")


def main(runs: Path, out: Path) -> None:
    """Write the table of each setting that was run, and the list of all runs."""
    out.mkdir(parents=True, exist_ok=True)
    listed, frames = out / "runs.csv", []
    before = (
        pandas.read_csv(listed, dtype=str, keep_default_na=False)
        if listed.exists()
        else None
    )
    for setting, what in SETTINGS.items():
        if not (runs / setting).is_dir():
            if before is not None:
                frames.append(before[before["setting"] == setting])
            continue
        finished = [
            run for run in summary.load_all(runs / setting) if run.summary.finished
        ]
        frame = pandas.DataFrame([row(run) for run in finished])
        frame.insert(0, "setting", setting)
        frames.append(frame)
        (out / f"{setting}.md").write_text(
            page(what, finished, frame), encoding="utf-8"
        )
    pandas.concat(frames).to_csv(listed, index=False)


def row(run: Run) -> dict[str, Any]:
    """What is kept of a run. Accuracies are in [0, 1], floats those of one client in a round.

    Seconds are the lowest tenth of the rounds': the runs have a shared machine, and rounds that are scored or
    wait for others say nothing of a method.
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


def page(what: str, finished: Sequence[Run], frame: pandas.DataFrame) -> str:
    """A setting's table in Markdown, the best method first."""
    complete = [
        name for name, own in frame.groupby("method") if sorted(own["seed"]) == SEEDS
    ]
    if len(complete) < 2:
        return f"# {what}\n\nNot finished with all seeds.\n"
    frame = frame[frame["method"].isin(complete)].copy()
    frame["rank"] = frame.groupby("seed")["accuracy"].rank(ascending=False)
    frame["floats"] /= frame[frame["method"] == "fedavg"]["floats"].mean()
    by_name = {
        name: sorted(
            (run for run in finished if run.summary.method == name),
            key=lambda run: run.config["seed"],
        )
        for name in complete
    }
    found = pairing.compared(by_name, "", finished[0].measure, AT)
    beaten = {name: len(found.above(name)) for name in complete}
    beats = {
        name: sum(name in found.above(other) for other in complete) for name in complete
    }
    mean = (
        frame.groupby("method")
        .mean(numeric_only=True)
        .sort_values("accuracy", ascending=False)
    )
    deviation = frame.groupby("method")["accuracy"].std(ddof=0)
    mean["seconds"] = frame.groupby("method")["seconds"].min()
    columns = frame.groupby("method")["column"].first()
    lines = [
        cells(
            str(name), columns[name], of_one, deviation[name], beats[name], beaten[name]
        )
        for name, of_one in mean.iterrows()
    ]
    heading = list(lines[0])
    rule = ["---" if name in ("method", "column") else "---:" for name in heading]
    lacking = sorted({run.summary.method for run in finished} - set(complete))
    table = [heading, rule, *(line.values() for line in lines)]
    text = [
        f"# {what}",
        "",
        *(f"| {' | '.join(line)} |" for line in table),
        "",
        pairing.note(by_name, "", finished[0].measure, AT, "Over all"),
        "",
    ]
    return "\n".join(
        text
        + (
            [f"Not finished with all seeds: {', '.join(lacking)}.", ""]
            if lacking
            else []
        )
    )


def cells(
    name: str,
    column: str,
    mean: Mapping[str, float],
    deviation: float,
    beats: int,
    beaten: int,
) -> dict[str, str]:
    """A line of a table, by heading."""
    percent = {key: f"{100 * mean[key]:.2f}" for key in PERCENT}
    return {
        "method": name,
        "column": column,
        "accuracy, %": f"{percent['accuracy']} ± {100 * deviation:.2f}",
        "rank": f"{mean['rank']:.1f}",
        "better than": str(beats),
        "worse than": str(beaten),
        "spread": percent["spread"],
        "worst tenth": percent["worst tenth"],
        "best round": percent["best"],
        "drift": f"{100 * mean['drift']:+.2f}".replace("+nan", "–"),
        "floats": f"{mean['floats']:.2f}",
        "seconds": f"{mean['seconds']:.2f}",
    }


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
