"""Results as data frames of pandas, which is imported only here: it takes a second."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.storage.moments import of_clients
from hpcfl.storage.results import Results

if TYPE_CHECKING:
    import pandas

OF_CLIENTS = "clients/"  # begins the names of values with a number for each client


def rounds(results: Results) -> "pandas.DataFrame":
    """One row a round, by its number; a column for each number that was recorded of it."""
    import pandas

    values = {name: array for name, array in results.values.items() if array.ndim == 1}
    return pandas.DataFrame(values, index=pandas.Index(results.rounds, name="round"))


def clients(results: Results) -> "pandas.DataFrame":
    """One row for each round and client; a column for each number that was recorded of
    clients.

    Beside them ``COLUMN/accuracy``, the numbers of a client's samples,
    ``train_samples`` and ``test_samples``, and its ``name`` where the data have clients
    of their own.
    """
    import pandas

    values = {
        name.removeprefix(OF_CLIENTS): array
        for name, array in results.values.items()
        if name.startswith(OF_CLIENTS)
    }
    for column in [
        name.removesuffix("/correct") for name in values if name.endswith("/correct")
    ]:
        accuracy = of_clients(results, column, "accuracy")
        if accuracy is not None:
            values[f"{column}/accuracy"] = accuracy
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
