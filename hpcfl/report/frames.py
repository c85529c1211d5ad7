"""Results as data frames of pandas, which is imported only here: it takes a second."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.scores._metric_name import MetricName
from hpcfl.storage.moments import of_clients
from hpcfl.storage.results import Results

if TYPE_CHECKING:
    import pandas


def rounds(results: Results) -> "pandas.DataFrame":
    """One row a round, by its number; a column for each number that was recorded of it."""
    import pandas

    values = {
        str(name): results.series(name) for name in results.names if not name.of_clients
    }
    return pandas.DataFrame(values, index=pandas.Index(results.rounds, name="round"))


def clients(results: Results) -> "pandas.DataFrame":
    """One row for each round and client; a column for each number that was recorded of
    clients.

    Beside them ``COLUMN/accuracy``, the numbers of a client's samples,
    ``train_samples`` and ``test_samples``, and its ``name`` where the data have clients
    of their own.
    """
    import pandas

    values = {}
    for name in results.names:
        if name.of_clients:
            values[str(replace(name, of_clients=False))] = results.series(name)
        if name.of_clients and name.number == "correct":
            accuracy = of_clients(results, name.column, "accuracy")
            if accuracy is not None:
                values[str(MetricName("accuracy", name.column))] = accuracy
    count = next((array.shape[1] for array in values.values()), 0)
    for part in ("train", "test"):
        if (counts := results.static.get(f"{part}_counts")) is not None:
            values[f"{part}_samples"] = np.broadcast_to(
                counts.sum(axis=1), (len(results.rounds), count)
            )
    if len(names := results.header.get("clients", [])) == count:
        values["name"] = np.broadcast_to(
            np.array(names, object), (len(results.rounds), count)
        )
    index = pandas.MultiIndex.from_product(
        [results.rounds, range(count)], names=["round", "client"]
    )
    return pandas.DataFrame(
        {name: values[name].reshape(-1) for name in sorted(values)}, index=index
    )


def runs(rows: Mapping[str, Mapping[str, Any]]) -> "pandas.DataFrame":
    """One row a run, by its folder, of what ``Run.row`` says of each."""
    import pandas

    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("folder")
