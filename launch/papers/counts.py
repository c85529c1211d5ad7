"""Compare the numbers in the papers' tables with hpcfl's: ``python
launch/papers/counts.py DATA OUT``.

DATA is the folder with CIFAR-100. Counts are computed without training. Accuracies are read
from the lists of runs that ``beside_paper.py`` has written. The command writes three files:

* ``results/reported.csv``: the columns with the status of each number, our number, the
  difference and its standard error;
* ``OUT/README.md``: numbers by table and status;
* ``OUT/details.md``: comparison of the papers' counts with ours.
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
# Tables with runs, with the reference cell of each.
REFERENCES = {
    "I": "method.name=local",
    "II": "method.name=local",
    "V": "method.tau=1.0",
}
SEEDS = range(5)
# Shapes of the samples on which FedALA's tables base their counts. The CNN's is MNIST's,
# although the accuracies in the same table are on Tiny-ImageNet.
COUNTED_FOR = {"resnet18": (3, 64, 64), "cnn": (1, 28, 28), "fasttext": (200,)}
STATUSES = {
    "yes": "runs with all rounds of the paper",
    "shortened": "runs with fewer rounds",
    "counted": "count without training",
    "not run": "no run yet, although a CPU is sufficient",
    "no data": "data set not available",
    "no hardware": "model that needs a GPU, or a time on the paper's machine",
    "undefined": "number that the paper does not define",
}
NO_DATA = {"ag-news", "pathmnist", "tiny-imagenet"}
UNDEFINED = {"client_flops_per_round", "server_client_flops_ratio_pct"}
NEW_COLUMNS = ["run", "runs", "ours", "difference", "error", "source"]


@dataclass(frozen=True)
class Number:
    """Our value for one number of a paper.

    Attributes:
        ours: Value in the unit of the paper's value.
        difference: Our value minus the paper's value.
        error: Standard error of the difference, or None for a deterministic count.
        run: Status, a key of ``STATUSES``.
        runs: Number of averaged runs, 0 for a count.
        source: List of the runs, or page with the count.
    """

    ours: float
    difference: float
    error: float | None = None
    run: str = "counted"
    runs: int = 0
    source: str = "results/counts/details.md"


def main(data: Path, out: Path) -> None:
    """Write the columns of ``reported.csv`` and both pages.

    Args:
        data: Folder with CIFAR-100.
        out: Folder of the pages.
    """
    reported = pandas.read_csv(REPORTED)
    classes = count_classes(reported, data)
    numbers = classes | count_all(reported) | read_accuracies()
    write_columns(numbers)
    parts = [
        DETAILS,
        render_classes(reported, classes),
        render_floats(reported),
        render_blended(reported),
        render_operations(reported),
    ]
    pages = {
        "README": summarise(pandas.read_csv(REPORTED)),
        "details": "\n\n".join(parts),
    }
    for name, text in pages.items():
        (out / f"{name}.md").write_text(f"{text}\n", encoding="utf-8")


SUMMARY = """# Numbers in the tables of the papers

{near} of the {played} numbers that were run with all rounds are within two standard errors of the
paper's number. Four papers, one of them in two versions, print {numbers} numbers in these tables.
{counted} numbers are counts without training, and no number comes from a shortened run.

{table}

| Column | Meaning |
|---|---|
| run in full | runs with all rounds of the paper |
| counted | count without training |
| not run | runs of DiversiFed for which a CPU is sufficient |
| no data | Tiny-ImageNet, PathMNIST and the training texts of AG News were not available |
| no hardware | convolutional models, which need a GPU, and times on the papers' machines |
| undefined | numbers that the paper does not define |
| within 2 errors | runs in full within two standard errors of the paper's number |

[DiversiFed's tables](../diversifed/README.md) compares accuracies with the paper.

## Measurement

    python launch/papers/counts.py DATA results/counts

DATA is the folder with CIFAR-100. The command writes this page and the columns `run` to
`source` of [reported.csv](../reported.csv). [Details](details.md) compares every count with the
paper."""
DETAILS = """# Numbers in the tables of the papers: details

35 of 37 counts without randomness equal the papers' values within rounding; FedFomo and APPLE differ
by one model. This page compares all counts, and [the summary](README.md) lists all tables.

| Table of the paper | Numbers | Result |
|---|---:|---|
| cwFedAvg, version 1, Table 3: classes per client | 7 | largest differences +1.3 of 68, −1.3 of 46 |
| FedALA, Table 3: parameters sent per round | 14 | 12 equal; FedFomo and APPLE send 20 Σ instead of 21 Σ |
| FedALA, Tables 1 and 6: weights that ALA learns | 14 | equal within the paper's rounding |
| DiversiFed, Table VIII: parameters and operations | 9 | equal within the paper's rounding |

No model is trained for these numbers. A client of FedFomo or APPLE already has its personal model,
so hpcfl does not send it. Table VIII also has the operations of a client. They are omitted here,
because the paper does not define them.

The column `run` of `reported.csv` is the status of a number:

{statuses}

`difference` is `ours` minus the paper's value. `error` is the standard error of the difference. It
is computed from the standard deviations over our runs and over the paper's five runs. For a single
run of ours it uses the paper's standard deviation."""
STATUS_LINES = [f"* `{name}`: {meaning}." for name, meaning in STATUSES.items()]
DETAILS = DETAILS.format(statuses="\n".join(STATUS_LINES))


def summarise(reported: pandas.DataFrame) -> str:
    """Return the page with the numbers by table and status, in Markdown."""
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
        near_in_table = near.reindex(rows.index).dropna()
        shown = int(near_in_table.sum()) if len(near_in_table) else ""
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
    """Write our values into the list of the papers' numbers.

    Args:
        numbers: Our values by row of ``reported.csv``.
    """
    with REPORTED.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for index, row in enumerate(rows):
        row.update(format_columns(row, numbers.get(index)))
    with REPORTED.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def format_columns(row: Mapping[str, str], number: Number | None) -> dict[str, str]:
    """Return the new columns of a row as text."""
    if number is None:
        return dict.fromkeys(NEW_COLUMNS, "") | {"run": find_reason(row)}
    error = "" if number.error is None else _format_rounded(number.error)
    return {
        "run": number.run,
        "runs": str(number.runs or ""),
        "ours": _format_rounded(number.ours),
        "difference": _format_rounded(number.difference),
        "error": error,
        "source": number.source,
    }


def find_reason(row: Mapping[str, str]) -> str:
    """Return the reason for a missing value of ours, a key of ``STATUSES``."""
    keys = _parse_setting(row["setting"])
    if row["metric"] in UNDEFINED:
        return "undefined"
    if "time" in row["metric"]:
        return "no hardware"
    if keys["data.dataset"] in NO_DATA:
        return "no data"
    return "not run" if keys["model.name"] == "mlp" else "no hardware"


def _format_rounded(value: float) -> str:
    return f"{round(value, 3) + 0.0:.12g}"


def read_accuracies() -> dict[int, Number]:
    """Return our accuracies in the best round, as the paper reports them, by row."""
    numbers = {}
    for table, reference in REFERENCES.items():
        listed = RUNS / f"table-{table}.csv"
        frame = pandas.read_csv(listed)
        full = _read_full_rounds(table)
        keys = beside_paper.find_varying_keys(beside_paper.read_paper(table))
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


def _read_full_rounds(table: str) -> int:
    """Return the number of rounds of a table of DiversiFed."""
    keys = beside_paper.read_paper(table).iloc[0]
    method = {"name": keys["method.name"]}
    return config.parse({"protocol": "diversifed", "method": method}).rounds


def count_all(reported: pandas.DataFrame) -> dict[int, Number]:
    """Return all counts that need no data set, by row."""
    return count_floats(reported) | count_blended(reported) | count_operations(reported)


def count_classes(reported: pandas.DataFrame, data: Path) -> dict[int, Number]:
    """Return the numbers of classes per client on CIFAR-100, by row.

    Args:
        reported: Numbers of the papers.
        data: Folder with CIFAR-100.
    """
    counted = {}
    for line in find_table(reported, "cwfedavg", "3").itertuples():
        keys = _parse_setting(line.setting)
        numbers = []
        for seed in SEEDS:
            table = {"seed": seed, "data": {"dataset": "cifar-100", "root": str(data)}}
            table["partition"] = _select_section(keys, "partition")
            table["method"] = {"name": "local"}
            experiment = config.parse(table)
            dataset = datasets.load(experiment.data)
            split = partition.make(experiment.partition, dataset)
            counts = sum(
                split.count_classes(dataset.y, dataset.classes, part)
                for part in ("train", "test")
            )
            numbers.append((counts > 0).sum(axis=1).mean())
        mean = float(np.mean(numbers))
        error = float(np.std(numbers, ddof=1) / np.sqrt(len(SEEDS)))
        counted[line.Index] = Number(mean, mean - line.value, error)
    return counted


def render_classes(reported: pandas.DataFrame, numbers: Mapping[int, Number]) -> str:
    """Return the section on cwFedAvg's Table 3: classes per client of CIFAR-100."""
    lines = []
    for line in find_table(reported, "cwfedavg", "3").itertuples():
        number = numbers[line.Index]
        beta = _parse_setting(line.setting).get(
            "partition.beta", "ten classes per client"
        )
        assert number.error is not None
        deviation = number.error * np.sqrt(len(SEEDS))
        ours = f"{number.ours:.1f} ± {deviation:.1f}"
        difference = f"{number.difference:+.1f} ± {number.error:.1f}"
        lines.append(f"| {beta} | {line.value:.0f} | {ours} | {difference} |")
    return "\n".join(
        [
            "## cwFedAvg, version 1, Table 3: classes per client on CIFAR-100",
            "",
            "The classes of a client are the classes of its training and test samples. Each number "
            f"is the mean over 20 clients and {len(SEEDS)} random partitions; β is the parameter "
            "of the Dirichlet distribution. In the column hpcfl ± is the standard deviation over "
            "partitions. In the last column ± is the standard error of our mean, without the "
            "random error and the rounding of the paper's number.",
            "",
            "| β | paper | hpcfl | difference |",
            "|---|---:|---:|---:|",
            *lines,
        ]
    )


def count_floats(reported: pandas.DataFrame) -> dict[int, Number]:
    """Return the floats per client and round in the unit of the table, by row."""
    counted = {}
    for line in find_table(reported, "fedala", "3").itertuples():
        if not line.metric.startswith("comm_params"):
            continue
        traffic_of_method = traffic.count(_parse_setting(line.setting)["method.name"])
        assert traffic_of_method.paper is not None
        _, papers = traffic_of_method.paper
        ours = traffic_of_method.down + traffic_of_method.up
        # The paper prints c, for c Σ, c α Σ or (c + M) Σ.
        unit = papers / line.value if "alpha" in line.metric else 1
        difference = (ours - papers) / unit
        counted[line.Index] = Number(line.value + difference, difference)
    return counted


def render_floats(reported: pandas.DataFrame) -> str:
    """Return the section on FedALA's Table 3: parameters per client and round."""
    lines = []
    for line in find_table(reported, "fedala", "3").itertuples():
        if not line.metric.startswith("comm_params"):
            continue
        name = _parse_setting(line.setting)["method.name"]
        counted = traffic.count(name)
        assert counted.paper is not None
        formula, value = counted.paper
        ours = counted.down + counted.up
        lines.append(f"| {line.method} | {formula} | {value:.3f} | {ours:.3f} |")
    return "\n".join(
        [
            "## FedALA, Table 3: parameters sent and received per client and round",
            "",
            "The unit is the size Σ of a model. The values are counted in a simulated round. α is "
            f"the body's share of a model, and M = {traffic.CLIENTS} the number of clients. A "
            "client of FedFomo or APPLE already has its personal model, so hpcfl sends one Σ less. "
            "The times in the table are omitted, because they depend on the paper's machine.",
            "",
            "| method | formula of the paper | value of the paper | hpcfl |",
            "|---|---|---:|---:|",
            *lines,
        ]
    )


def count_blended(reported: pandas.DataFrame) -> dict[int, Number]:
    """Return the numbers of weights that adaptive local aggregation learns, by row."""
    counted = {}
    for number, unit in (("1", 1e6), ("6", 1)):
        for line in find_table(reported, "fedala", number).itertuples():
            keys = _parse_setting(line.setting)
            if "ala_trainable" not in line.metric:
                continue
            ours = _count_blended_weights(keys) / unit
            counted[line.Index] = Number(ours, ours - line.value)
    return counted


def _count_blended_weights(keys: Mapping[str, Any]) -> int:
    """Return the number of weights in the upper layers that ALA blends in a setting."""
    classes = 4 if keys["data.dataset"] == "ag-news" else 10
    columns = lay_out_parameters(_build_model(keys, classes)).columns(
        _count_upper_layers(keys)
    )
    return columns.stop - columns.start


def _count_upper_layers(keys: Mapping[str, Any]) -> int:
    """Return the number p of upper layers, 1 if the setting does not name it."""
    return int(keys.get("method.layers", 1))


def render_blended(reported: pandas.DataFrame) -> str:
    """Return the section on FedALA's Tables 1 and 6: weights that ALA learns."""
    lines = []
    for number, unit in (("1", 1e6), ("6", 1)):
        for line in find_table(reported, "fedala", number).itertuples():
            keys = _parse_setting(line.setting)
            if "ala_trainable" not in line.metric:
                continue
            upper = _count_upper_layers(keys)
            ours = _count_blended_weights(keys)
            paper = f"{line.value * unit:,.0f}"
            lines.append(f"| {keys['model.name']} | {upper} | {paper} | {ours:,} |")
    return "\n".join(
        [
            "## FedALA, Tables 1 and 6: weights that ALA learns",
            "",
            "ALA learns one weight for each parameter of the upper p layers. The paper prints these "
            "counts next to accuracies on Tiny-ImageNet, but they belong to an output layer with "
            "ten classes, and for the CNN to images of MNIST. Counts of these models agree with "
            "the paper's. Table 1 rounds to thousands.",
            "",
            "| model | p | paper | hpcfl |",
            "|---|---:|---:|---:|",
            *lines,
        ]
    )


def count_operations(reported: pandas.DataFrame) -> dict[int, Number]:
    """Return the numbers of parameters and of server operations, by row."""
    counted = {}
    for line in find_table(reported, "diversifed", "VIII").itertuples():
        keys = _parse_setting(line.setting)
        classes = 100 if keys["data.dataset"] == "cifar-100" else 10
        shape = (1, 28, 28) if keys["data.dataset"] == "fashion-mnist" else (3, 32, 32)
        model = _build_model(keys, classes, shape)
        parameters = sum(one.numel() for one in model.parameters())
        clients = int(keys.get("partition.clients", 0))
        # One difference, one square and one sum per parameter, for n²/2 pairs.
        server = 3 * parameters * clients**2 / 2
        ours = {"params": parameters, "server_flops_per_round": server}.get(line.metric)
        if ours is not None:
            counted[line.Index] = Number(ours, ours - line.value)
    return counted


def render_operations(reported: pandas.DataFrame) -> str:
    """Return the section on DiversiFed's Table VIII: parameters and server operations."""
    rows = find_table(reported, "diversifed", "VIII")
    lines = []
    numbers = count_operations(reported)
    for line in rows.itertuples():
        if line.Index not in numbers:
            continue
        keys = _parse_setting(line.setting)
        clients = keys.get("partition.clients", "")
        ours = numbers[line.Index].ours
        difference = 100 * (ours / line.value - 1)
        lines.append(
            f"| {keys['data.dataset']}, {keys['model.name']} | {clients} | "
            f"{line.metric} | {line.value:,.0f} | {ours:,.0f} | {difference:+.1f} % |"
        )
    return "\n".join(
        [
            "## DiversiFed, Table VIII: parameters and server operations",
            "",
            "The server computes distances between all pairs of n models, with 3 operations per "
            "parameter for n²/2 pairs. With this interpretation the counts agree with the paper's. "
            "The operations of a client, and the server's operations as a percentage of them, are "
            "omitted, because the paper does not define the operations of a client.",
            "",
            "| model | clients | count | paper | hpcfl | difference |",
            "|---|---:|---|---:|---:|---:|",
            *lines,
        ]
    )


def find_table(reported: pandas.DataFrame, paper: str, table: str) -> pandas.DataFrame:
    """Return the rows of one table of a paper."""
    return reported[(reported["paper"] == paper) & (reported["table"] == table)]


def _parse_setting(setting: str) -> dict[str, Any]:
    """Return the keys of a setting, a text of ``section.key=value`` with blanks."""
    keys: dict[str, Any] = {}
    for word in setting.split():
        key, _, text = word.partition("=")
        try:
            keys[key] = json.loads(text)
        except ValueError:
            keys[key] = text
    return keys


def _select_section(keys: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the keys of one section without the name of the section."""
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): content
        for key, content in keys.items()
        if key.startswith(prefix)
    }


def _build_model(
    keys: Mapping[str, Any], classes: int, shape: tuple[int, ...] = ()
) -> torch.nn.Module:
    """Return the model of a setting for samples of a shape."""
    shape = shape or COUNTED_FOR[keys["model.name"]]
    table = {"model": _select_section(keys, "model"), "method": {"name": "local"}}
    model = config.parse(table).model
    vocabulary = 98_635 if "vocabulary" in model.options else None
    return models.build(model, shape, classes, vocabulary)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
