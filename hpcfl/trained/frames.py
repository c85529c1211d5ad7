"""Results as pandas data frames.

Functions import pandas themselves, because the import takes a second.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.scores.metric_names import MetricName
from hpcfl.storage.metrics import compute_entry_scores, list_scores
from hpcfl.storage.results import GROUP, Results

if TYPE_CHECKING:
    import pandas


def make_rounds(results: Results) -> "pandas.DataFrame":
    """Return one row per round, by its number, with a column for each recorded metric."""
    import pandas

    columns = {}
    for name in results.names:
        if not name.of_clients:
            columns[str(name)] = results.get_series(name)
    index = pandas.Index(results.rounds, name="round")
    return pandas.DataFrame(columns, index=index)


def make_clients(results: Results) -> "pandas.DataFrame":
    """Return the recorded metrics of each client in each round.

    Returns:
        One row for each round and client with recorded metrics, and a column for each
        metric of clients; ``COLUMN/SCORE``, such as ``pre/accuracy`` and ``pre/loss``,
        is the score of the client. Further columns are ``train_samples`` and
        ``test_samples``, a client's numbers of samples; ``name``, if the data name
        their clients; and with ``[[shift]]`` ``group``, the client's group, and
        ``sees``, its name.
    """
    import pandas

    recorded = results.values
    columns = _list_recorded(results)
    for part in ("train", "test"):
        class_counts = results.static.get(f"{part}_counts")
        if class_counts is not None:
            columns[f"{part}_samples"] = class_counts.sum(axis=1)[recorded.ids]
    names = results.header.get("clients", [])
    if len(names) == recorded.clients:
        columns["name"] = np.array(names, object)[recorded.ids]
    group = results.static.get(GROUP)
    called = results.header.get("groups", [])
    if group is not None and len(group) == recorded.clients:
        columns["group"] = group[recorded.ids]
        if group.max(initial=-1) < len(called):
            columns["sees"] = np.array(called, object)[columns["group"]]
    index = pandas.MultiIndex.from_arrays(
        [results.rounds[recorded.entry_rounds], recorded.ids], names=["round", "client"]
    )
    in_order = {name: columns[name] for name in sorted(columns)}
    return pandas.DataFrame(in_order, index=index)


def _list_recorded(results: Results) -> dict[str, np.ndarray]:
    """Return the clients' metrics by column of the data frame, [N] each."""
    columns = {}
    scored = set[str]()
    for text, numbers in results.values.columns.items():
        name = MetricName.parse(text)
        columns[str(replace(name, of_clients=False))] = numbers
        scored.add(name.column)
    for column in scored:
        for score in list_scores(results):
            of_clients = compute_entry_scores(results.values, column, score)
            if of_clients is not None:
                columns[str(MetricName(score, column))] = of_clients
    return columns
