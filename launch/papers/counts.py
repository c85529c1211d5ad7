"""The papers' tables of counts, without training: ``python launch/papers/counts.py DATA
OUT``.

DATA is the folder with CIFAR-100. ``OUT/README.md`` has a summary, and
``OUT/details.md`` the paper's number beside each of ours.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
import traffic

from hpcfl import models
from hpcfl.data import datasets, partition
from hpcfl.experiment import config
from hpcfl.rows.layout import of_parameters

REPORTED = Path(__file__).parents[2] / "results" / "reported.csv"
SEEDS = range(5)
# The shape of a sample for which FedALA's tables count: of the CNN it is MNIST's, although
# the accuracies beside it are of Tiny-ImageNet.
COUNTED_FOR = {"resnet18": (3, 64, 64), "cnn": (1, 28, 28), "fasttext": (200,)}


def main(data: Path, out: Path) -> None:
    """Write the page."""
    reported = pandas.read_csv(REPORTED)
    parts = [
        DETAILS,
        classes_held(reported, data),
        floats(reported),
        blended(reported),
        operations(reported),
    ]
    pages = {"README": HEAD, "details": "\n\n".join(parts)}
    for name, text in pages.items():
        (out / f"{name}.md").write_text(f"{text}\n", encoding="utf-8")


HEAD = """# The papers' tables of counts

| Table of the paper | Numbers | Result |
|---|---:|---|
| cwFedAvg, version 1, Table 3: classes of a client | 7 | largest differences +1.3 of 68, −1.3 of 46 |
| FedALA, Table 3: parameters that travel in a round | 14 | 12 equal; FedFomo and APPLE 20 Σ, not 21 Σ |
| FedALA, Tables 1 and 6: weights that ALA learns | 13 | equal, within the paper's rounding |
| DiversiFed, Table VIII: parameters and operations | 9 | equal, within the paper's rounding |

No model is trained for these numbers. A client of FedFomo or APPLE has its own model already, so
hpcfl does not send it. Table VIII also has the operations of a client; they are left out, because
the paper does not define them.

## Measurement

    python launch/papers/counts.py DATA results/counts

DATA is the folder with CIFAR-100. [Details](details.md) has every number beside the paper's."""
DETAILS = """# The papers' tables of counts: details

[The summary](README.md) has a row for each of these tables."""


def classes_held(reported: pandas.DataFrame, data: Path) -> str:
    """cwFedAvg, Table 3: how many classes a client of CIFAR-100 holds."""
    lines = []
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
        law = keys.get("partition.beta", "ten classes a client")
        deviation = np.std(numbers, ddof=1)
        error = deviation / np.sqrt(len(SEEDS))
        ours = f"{np.mean(numbers):.1f} ± {deviation:.1f}"
        difference = f"{np.mean(numbers) - line.value:+.1f} ± {error:.1f}"
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


def floats(reported: pandas.DataFrame) -> str:
    """FedALA, Table 3: what travels for a client in a round."""
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


def blended(reported: pandas.DataFrame) -> str:
    """FedALA, Tables 1 and 6: weights that adaptive local aggregation learns."""
    lines = []
    for number, unit in (("1", 1e6), ("6", 1)):
        for line in find_table(reported, "fedala", number).itertuples():
            keys = _keys(line.setting)
            if "ala_trainable" not in line.metric or "method.layers" not in keys:
                continue
            classes = 4 if keys["data.dataset"] == "ag-news" else 10
            upper = int(keys["method.layers"])
            columns = of_parameters(_model(keys, classes)).columns(upper)
            ours = columns.stop - columns.start
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


def operations(reported: pandas.DataFrame) -> str:
    """DiversiFed, Table VIII: parameters, and operations of server and client."""
    rows = find_table(reported, "diversifed", "VIII")
    lines = []
    for line in rows.itertuples():
        keys = _keys(line.setting)
        classes = 100 if keys["data.dataset"] == "cifar-100" else 10
        shape = (1, 28, 28) if keys["data.dataset"] == "fashion-mnist" else (3, 32, 32)
        model = _model(keys, classes, shape)
        parameters = sum(one.numel() for one in model.parameters())
        clients = int(keys.get("partition.clients", 0))
        # a difference, a square and a sum for each parameter of each of the n²/2 pairs
        server = 3 * parameters * clients**2 / 2
        ours = {"params": parameters, "server_flops_per_round": server}.get(line.metric)
        if ours is None:
            continue
        difference = 100 * (ours / line.value - 1)
        lines.append(
            f"| {keys['data.dataset']}, {keys['model.name']} | {clients or ''} | "
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
    """The lines of one table of one paper."""
    return reported[(reported["paper"] == paper) & (reported["table"] == table)]


def _keys(setting: str) -> dict[str, Any]:
    """The keys of a setting, ``section.key=value`` separated by blanks."""
    keys: dict[str, Any] = {}
    for word in setting.split():
        key, _, text = word.partition("=")
        try:
            keys[key] = json.loads(text)
        except ValueError:
            keys[key] = text
    return keys


def _section(keys: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The keys of one section, without its name."""
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): content
        for key, content in keys.items()
        if key.startswith(prefix)
    }


def _model(
    keys: Mapping[str, Any], classes: int, shape: tuple[int, ...] = ()
) -> torch.nn.Module:
    """The model that a setting names, for data of a shape."""
    shape = shape or COUNTED_FOR[keys["model.name"]]
    table = {"model": _section(keys, "model"), "method": {"name": "local"}}
    model = config.parse(table).model
    vocabulary = 98_635 if "vocabulary" in model.options else None
    return models.build(model, shape, classes, vocabulary)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
