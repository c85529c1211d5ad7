"""Results as data frames of pandas, which is imported only here: it takes a second."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.scores._metric_name import MetricName
from hpcfl.storage.moments import of_clients
from hpcfl.storage.results import GROUP, Results

if TYPE_CHECKING:
    import pandas


def rounds(results: Results) -> "pandas.DataFrame":
    """One row a round, by its number; a column for each number that was recorded of it."""
    import pandas

    columns = {}
    for name in results.names:
        if not name.of_clients:
            columns[str(name)] = results.series(name)
    index = pandas.Index(results.rounds, name="round")
    return pandas.DataFrame(columns, index=index)


def clients(results: Results) -> "pandas.DataFrame":
    """What was recorded of each client in each round.

    Returns:
        One row for each round and client; a column for each number that was recorded of
        clients. Beside them ``COLUMN/accuracy``, the numbers of a client's samples,
        ``train_samples`` and ``test_samples``, its ``name`` where the data have
        clients of their own, and its ``group``, with what this is called as ``sees``,
        where ``[[shift]]`` makes some.
    """
    import pandas

    columns = _recorded_of_clients(results)  # each [rounds, clients]
    client_count = 0
    if columns:
        first_column = next(iter(columns.values()))
        client_count = first_column.shape[1]
    shape = (len(results.rounds), client_count)
    for part in ("train", "test"):
        class_counts = results.static.get(f"{part}_counts")
        if class_counts is not None:
            samples = class_counts.sum(axis=1)
            columns[f"{part}_samples"] = np.broadcast_to(samples, shape)
    names = results.header.get("clients", [])
    if len(names) == client_count:
        columns["name"] = np.broadcast_to(np.array(names, object), shape)
    group = results.static.get(GROUP)
    called = results.header.get("groups", [])
    if group is not None and len(group) == client_count:
        columns["group"] = np.broadcast_to(group, shape)
        if group.max(initial=-1) < len(called):
            columns["sees"] = np.broadcast_to(np.array(called, object)[group], shape)
    index = pandas.MultiIndex.from_product(
        [results.rounds, range(client_count)], names=["round", "client"]
    )
    flat = {name: columns[name].reshape(-1) for name in sorted(columns)}
    return pandas.DataFrame(flat, index=index)


def _recorded_of_clients(results: Results) -> dict[str, np.ndarray]:
    """The clients' numbers by column of the data frame, ``[rounds, clients]`` each."""
    columns = {}
    for name in results.names:
        if not name.of_clients:
            continue
        columns[str(replace(name, of_clients=False))] = results.series(name)
        if name.number == "correct":
            accuracy = of_clients(results, name.column, "accuracy")
            if accuracy is not None:
                columns[str(MetricName("accuracy", name.column))] = accuracy
    return columns


def runs(rows: Mapping[str, Mapping[str, Any]]) -> "pandas.DataFrame":
    """One row a run, by its folder, of what ``Run.row`` says of each."""
    import pandas

    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("folder")
