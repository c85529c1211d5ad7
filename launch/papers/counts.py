"""Compare the numbers in the papers' tables with hpcfl's: ``python
launch/papers/counts.py DATA OUT``.

DATA is the folder with CIFAR-100. Counts are computed without training. Accuracies come
from the runs that ``beside_paper.py`` has listed. The command writes columns of
``results/reported.csv``: the status of each number, our number, the difference and its
standard error. ``OUT/README.md`` counts the numbers by table, and ``OUT/details.md``
compares the papers' counts with ours.
"""

import csv
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import beside_paper
import numpy as np
import pandas
import torch
import traffic

from hpcfl import models
from hpcfl.data import datasets, partition
from hpcfl.experiment import config
from hpcfl.rows.layout import lay_out_parameters

REPORTED = Path(__file__).parents[2] / "results" / "reported.csv"
RUNS = Path(__file__).parents[2] / "results" / "diversifed"
# Tables with runs, and the reference cell of each.
PLAYED = {"I": "method.name=local", "II": "method.name=local", "V": "method.tau=1.0"}
SEEDS = range(5)
# Shape of a sample for which FedALA's tables count. For the CNN it is MNIST's, although
# the accuracies in the same table are on Tiny-ImageNet.
COUNTED_FOR = {"resnet18": (3, 64, 64), "cnn": (1, 28, 28), "fasttext": (200,)}
STATUSES = {
    "yes": "runs with all rounds of the paper",
    "shortened": "runs with fewer rounds",
    "counted": "counted without training",
    "not run": "the model is small enough for a CPU",
    "no data": "the data set was not at hand",
    "no hardware": "the model needs a GPU, or the number is a time on the paper's machine",
    "undefined": "the paper does not define the number",
}
NO_DATA = {"ag-news", "pathmnist", "tiny-imagenet"}
UNDEFINED = {"client_flops_per_round", "server_client_flops_ratio_pct"}
NEW_COLUMNS = ["run", "runs", "ours", "difference", "error", "source"]


@dataclass(frozen=True)
class Number:
    """Our number for a number of a paper.

    Attributes:
        ours: Value in the unit of the paper's value.
        difference: Our value minus the paper's.
        error: Standard error of the difference; None without randomness.
        run: Status, a key of ``STATUSES``.
        runs: Number of runs that are averaged; 0 without training.
        source: File that lists the runs, or page with the count.
    """

    ours: float
    difference: float
    error: float | None = None
    run: str = "counted"
    runs: int = 0
    source: str = "results/counts/details.md"


def main(data: Path, out: Path) -> None:
    """Write the columns of the papers' numbers and both pages."""
    reported = pandas.read_csv(REPORTED)
    classes = count_classes(reported, data)
    numbers = classes | count_all(reported) | of_runs()
    write_columns(numbers)
    parts = [
        DETAILS,
        classes_held(reported, classes),
        floats(reported),
        blended(reported),
        operations(reported),
    ]
    pages = {
        "README": summarise(pandas.read_csv(REPORTED)),
        "details": "\n\n".join(parts),
    }
    for name, text in pages.items():
        (out / f"{name}.md").write_text(f"{text}\n", encoding="utf-8")


SUMMARY = """# The numbers of the papers' tables

{table}

Four papers, one of them in two versions, print {numbers} numbers in these tables. Of
them {played} were run with all rounds, and {near} of these are within two standard errors of
the paper's. {counted} were counted without training, and no number is of a shortened run.
"No data" are Tiny-ImageNet, PathMNIST and the training texts of AG News. "No hardware" are
convolutional models, which need a GPU, and times on the papers' machines. "Not run" are
runs of DiversiFed that a CPU can make. [DiversiFed's tables](../diversifed/README.md) has
the accuracies beside the paper's.

## Measurement

    python launch/papers/counts.py DATA results/counts

DATA is the folder with CIFAR-100. The command writes this page and the columns `run` to
`source` of [reported.csv](../reported.csv). [Details](details.md) has every count beside
the paper's."""
DETAILS = """# The numbers of the papers' tables: details

[The summary](README.md) has all tables. This page has those of counts.

| Table of the paper | Numbers | Result |
|---|---:|---|
| cwFedAvg, version 1, Table 3: classes of a client | 7 | largest differences +1.3 of 68, −1.3 of 46 |
| FedALA, Table 3: parameters that travel in a round | 14 | 12 equal; FedFomo and APPLE 20 Σ, not 21 Σ |
| FedALA, Tables 1 and 6: weights that ALA learns | 14 | equal, within the paper's rounding |
| DiversiFed, Table VIII: parameters and operations | 9 | equal, within the paper's rounding |

No model is trained for these numbers. A client of FedFomo or APPLE has its own model already, so
hpcfl does not send it. Table VIII also has the operations of a client; they are left out, because
the paper does not define them.

In `reported.csv` the column `run` says what was done for a number:

{statuses}

`difference` is `ours` less the paper's value. `error` is its standard error, from the deviations
over our runs and over the paper's five. A single run's deviation is taken to be the paper's."""
STATUS_LINES = [f"* `{name}`: {meaning}." for name, meaning in STATUSES.items()]
DETAILS = DETAILS.format(statuses="\n".join(STATUS_LINES))


def summarise(reported: pandas.DataFrame) -> str:
    """Return the page that counts the numbers by table and status."""
    names = [name for name in STATUSES if (reported["run"] == name).any()]
    with_error = reported[reported["run"] == "yes"]
    near = with_error["difference"].abs() <= 2 * with_error["error"]
    lines = [
        f"| Table | Numbers | {' | '.join(names)} | within 2 errors |".replace(
            " yes ", " run in full "
        ),
        f"|---|{'---:|' * (len(names) + 2)}",
    ]
    for (paper, table), rows in reported.groupby(["paper", "table"], sort=False):
        done = rows["run"].value_counts()
        counts = " | ".join(str(done.get(name, "")) for name in names)
        of_table = near.reindex(rows.index).dropna()
        shown = int(of_table.sum()) if len(of_table) else ""
        lines.append(f"| {paper} {table} | {len(rows)} | {counts} | {shown} |")
    done = reported["run"].value_counts()
    totals = " | ".join(str(done[name]) for name in names)
    lines.append(f"| all | {len(reported)} | {totals} | {int(near.sum())} |")
    return SUMMARY.format(
        table="\n".join(lines),
        numbers=len(reported),
        played=len(with_error),
        near=int(near.sum()),
        counted=int((reported["run"] == "counted").sum()),
    )


def write_columns(numbers: Mapping[int, Number]) -> None:
    """Write the columns of ``numbers``, by row, into the list of the papers' numbers."""
    with REPORTED.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for index, row in enumerate(rows):
        row.update(columns_of(row, numbers.get(index)))
    with REPORTED.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def columns_of(row: Mapping[str, str], number: Number | None) -> dict[str, str]:
    """Return the columns of a line as text."""
    if number is None:
        return dict.fromkeys(NEW_COLUMNS, "") | {"run": reason(row)}
    error = "" if number.error is None else _rounded(number.error)
    return {
        "run": number.run,
        "runs": str(number.runs or ""),
        "ours": _rounded(number.ours),
        "difference": _rounded(number.difference),
        "error": error,
        "source": number.source,
    }


def reason(row: Mapping[str, str]) -> str:
    """Return the reason why a number was not computed, a key of ``STATUSES``."""
    keys = _keys(row["setting"])
    if row["metric"] in UNDEFINED:
        return "undefined"
    if "time" in row["metric"]:
        return "no hardware"
    if keys["data.dataset"] in NO_DATA:
        return "no data"
    return "not run" if keys["model.name"] == "mlp" else "no hardware"


def _rounded(value: float) -> str:
    return f"{round(value, 3) + 0.0:.12g}"


def of_runs() -> dict[int, Number]:
    """Return our accuracies by row, in best rounds as the paper reports them."""
    numbers = {}
    for table, reference in PLAYED.items():
        listed = RUNS / f"table-{table}.csv"
        frame = pandas.read_csv(listed)
        full = _full_rounds(table)
        keys = beside_paper.varying(beside_paper.of_paper(table))
        rounds = frame.groupby(keys)["rounds"].min()
        for group in beside_paper.compare(frame, table, reference):
            for cell in group.to_dict("records"):
                played = rounds[tuple(cell[key] for key in keys)]
                numbers[cell["row"]] = Number(
                    cell["best"],
                    cell["difference"],
                    cell["error"],
                    "yes" if played >= full else "shortened",
                    cell["runs"],
                    f"results/diversifed/{listed.name}",
                )
    return numbers


def _full_rounds(table: str) -> int:
    """Return the number of rounds in a table of DiversiFed."""
    keys = beside_paper.of_paper(table).iloc[0]
    method = {"name": keys["method.name"]}
    return config.parse({"protocol": "diversifed", "method": method}).rounds


def count_all(reported: pandas.DataFrame) -> dict[int, Number]:
    """Return our counts that need no data set, by row."""
    return count_floats(reported) | count_blended(reported) | count_operations(reported)


def count_classes(reported: pandas.DataFrame, data: Path) -> dict[int, Number]:
    """Count the classes per client of CIFAR-100, by row."""
    counted = {}
    for line in find_table(reported, "cwfedavg", "3").itertuples():
        keys = _keys(line.setting)
        numbers = []
        for seed in SEEDS:
            table = {"seed": seed, "data": {"dataset": "cifar-100", "root": str(data)}}
            table["partition"] = _section(keys, "partition")
            table["method"] = {"name": "local"}
            experiment = config.parse(table)
            dataset = datasets.load(experiment.data)
            split = partition.make(experiment.partition, dataset)
            counts = sum(
                split.counts(dataset.y, dataset.classes, part)
                for part in ("train", "test")
            )
            numbers.append((counts > 0).sum(axis=1).mean())
        mean = float(np.mean(numbers))
        error = float(np.std(numbers, ddof=1) / np.sqrt(len(SEEDS)))
        counted[line.Index] = Number(mean, mean - line.value, error)
    return counted


def classes_held(reported: pandas.DataFrame, numbers: Mapping[int, Number]) -> str:
    """Return the section on cwFedAvg's Table 3: classes per client of CIFAR-100."""
    lines = []
    for line in find_table(reported, "cwfedavg", "3").itertuples():
        number = numbers[line.Index]
        law = _keys(line.setting).get("partition.beta", "ten classes a client")
        assert number.error is not None
        deviation = number.error * np.sqrt(len(SEEDS))
        ours = f"{number.ours:.1f} ± {deviation:.1f}"
        difference = f"{number.difference:+.1f} ± {number.error:.1f}"
        lines.append(f"| {law} | {line.value:.0f} | {ours} | {difference} |")
    return "\n".join(
        [
            "## cwFedAvg, version 1, Table 3: classes that a client of CIFAR-100 holds",
            "",
            "The classes are those among a client's training and test samples. Each number is "
            f"the mean over 20 clients and {len(SEEDS)} draws; β is that of the Dirichlet law. "
            "± is the standard deviation over draws. In the last column ± is the standard error "
            "of our mean. The paper's own chance and rounding are not in it.",
            "",
            "| β | paper | here | difference |",
            "|---|---:|---:|---:|",
            *lines,
        ]
    )


def count_floats(reported: pandas.DataFrame) -> dict[int, Number]:
    """Count the floats per client and round, by row, in the units of the table."""
    counted = {}
    for line in find_table(reported, "fedala", "3").itertuples():
        if not line.metric.startswith("comm_params"):
            continue
        traffic_of_method = traffic.count(_keys(line.setting)["method.name"])
        assert traffic_of_method.paper is not None
        _, papers = traffic_of_method.paper
        ours = traffic_of_method.down + traffic_of_method.up
        # The paper prints c, for c Σ, c α Σ or (c + M) Σ.
        unit = papers / line.value if "alpha" in line.metric else 1
        difference = (ours - papers) / unit
        counted[line.Index] = Number(line.value + difference, difference)
    return counted


def floats(reported: pandas.DataFrame) -> str:
    """Return the section on FedALA's Table 3: parameters sent per client and round."""
    lines = []
    for line in find_table(reported, "fedala", "3").itertuples():
        if not line.metric.startswith("comm_params"):
            continue
        name = _keys(line.setting)["method.name"]
        counted = traffic.count(name)
        assert counted.paper is not None
        formula, value = counted.paper
        ours = counted.down + counted.up
        lines.append(f"| {line.method} | {formula} | {value:.3f} | {ours:.3f} |")
    return "\n".join(
        [
            "## FedALA, Table 3: parameters that travel for one client in a round",
            "",
            "The unit is a model, Σ, counted in a round that is played. α is the body's share of a "
            f"model, and M = {traffic.CLIENTS} the number of clients. A client of FedFomo or APPLE "
            "has its own model already, so one Σ less travels here. The table's times are left "
            "out, because they are those of its machine.",
            "",
            "| method | formula of the paper | value of the paper | here |",
            "|---|---|---:|---:|",
            *lines,
        ]
    )


def count_blended(reported: pandas.DataFrame) -> dict[int, Number]:
    """Count the weights that adaptive local aggregation learns, by row."""
    counted = {}
    for number, unit in (("1", 1e6), ("6", 1)):
        for line in find_table(reported, "fedala", number).itertuples():
            keys = _keys(line.setting)
            if "ala_trainable" not in line.metric:
                continue
            ours = _weights_blended(keys) / unit
            counted[line.Index] = Number(ours, ours - line.value)
    return counted


def _weights_blended(keys: Mapping[str, Any]) -> int:
    """Return the number of weights in the upper layers that a setting blends."""
    classes = 4 if keys["data.dataset"] == "ag-news" else 10
    columns = lay_out_parameters(_model(keys, classes)).columns(_upper_layers(keys))
    return columns.stop - columns.start


def _upper_layers(keys: Mapping[str, Any]) -> int:
    """Return the number p of upper layers; 1 if FedALA does not vary it."""
    return int(keys.get("method.layers", 1))


def blended(reported: pandas.DataFrame) -> str:
    """Return the section on FedALA's Tables 1 and 6: weights that ALA learns."""
    lines = []
    for number, unit in (("1", 1e6), ("6", 1)):
        for line in find_table(reported, "fedala", number).itertuples():
            keys = _keys(line.setting)
            if "ala_trainable" not in line.metric:
                continue
            upper = _upper_layers(keys)
            ours = _weights_blended(keys)
            paper = f"{line.value * unit:,.0f}"
            lines.append(f"| {keys['model.name']} | {upper} | {paper} | {ours:,} |")
    return "\n".join(
        [
            "## FedALA, Tables 1 and 6: weights that ALA learns",
            "",
            "The weights are those of the upper p layers. The paper's counts beside Tiny-ImageNet's "
            "accuracies are of an output layer of ten classes, and of the CNN for MNIST's images. "
            "Counts of these models agree with the paper's. Table 1 rounds to thousands.",
            "",
            "| model | p | paper | here |",
            "|---|---:|---:|---:|",
            *lines,
        ]
    )


def count_operations(reported: pandas.DataFrame) -> dict[int, Number]:
    """Count the parameters and the server's operations, by row."""
    counted = {}
    for line in find_table(reported, "diversifed", "VIII").itertuples():
        keys = _keys(line.setting)
        classes = 100 if keys["data.dataset"] == "cifar-100" else 10
        shape = (1, 28, 28) if keys["data.dataset"] == "fashion-mnist" else (3, 32, 32)
        model = _model(keys, classes, shape)
        parameters = sum(one.numel() for one in model.parameters())
        clients = int(keys.get("partition.clients", 0))
        # A difference, a square and a sum for each parameter of each of n²/2 pairs.
        server = 3 * parameters * clients**2 / 2
        ours = {"params": parameters, "server_flops_per_round": server}.get(line.metric)
        if ours is not None:
            counted[line.Index] = Number(ours, ours - line.value)
    return counted


def operations(reported: pandas.DataFrame) -> str:
    """Return the section on DiversiFed's Table VIII: parameters and server operations."""
    rows = find_table(reported, "diversifed", "VIII")
    lines = []
    numbers = count_operations(reported)
    for line in rows.itertuples():
        if line.Index not in numbers:
            continue
        keys = _keys(line.setting)
        clients = keys.get("partition.clients", "")
        ours = numbers[line.Index].ours
        difference = 100 * (ours / line.value - 1)
        lines.append(
            f"| {keys['data.dataset']}, {keys['model.name']} | {clients} | "
            f"{line.metric} | {line.value:,.0f} | {ours:,.0f} | {difference:+.1f} % |"
        )
    return "\n".join(
        [
            "## DiversiFed, Table VIII: parameters and the server's operations",
            "",
            "The server's operations are distances between all pairs of n models, 3 operations for "
            "each parameter of n²/2 pairs. With this reading the counts agree with the paper's. The "
            "client's operations, and with them the server's percentage of these, are left out. "
            "The paper does not define the operations that it counts.",
            "",
            "| model | clients | count | paper | here | difference |",
            "|---|---:|---|---:|---:|---:|",
            *lines,
        ]
    )


def find_table(reported: pandas.DataFrame, paper: str, table: str) -> pandas.DataFrame:
    """Return the lines of one table of a paper."""
    return reported[(reported["paper"] == paper) & (reported["table"] == table)]


def _keys(setting: str) -> dict[str, Any]:
    """Return the keys of a setting, ``section.key=value`` separated by blanks."""
    keys: dict[str, Any] = {}
    for word in setting.split():
        key, _, text = word.partition("=")
        try:
            keys[key] = json.loads(text)
        except ValueError:
            keys[key] = text
    return keys


def _section(keys: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the keys of one section, without the section's name."""
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): content
        for key, content in keys.items()
        if key.startswith(prefix)
    }


def _model(
    keys: Mapping[str, Any], classes: int, shape: tuple[int, ...] = ()
) -> torch.nn.Module:
    """Return the model of a setting for samples of a shape."""
    shape = shape or COUNTED_FOR[keys["model.name"]]
    table = {"model": _section(keys, "model"), "method": {"name": "local"}}
    model = config.parse(table).model
    vocabulary = 98_635 if "vocabulary" in model.options else None
    return models.build(model, shape, classes, vocabulary)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
