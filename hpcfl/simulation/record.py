"""Results of a round: every client's own numbers, gathered on rank 0, and their
summary.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.clients.fleet import Fleet
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.exchange import Placement
from hpcfl.communication.message import Message, fields
from hpcfl.files import scratch
from hpcfl.scores.base import Score, summarize
from hpcfl.scores.metric_names import (
    CLIENTS,
    EPSILON,
    RECORDED,
    SAMPLE_GRADIENTS,
    SCORING_GRADIENTS,
    SECONDS,
    MetricName,
    is_held_out,
    of_attackers,
)
from hpcfl.storage.results import Metrics

NumbersByName = dict[str, NDArray[np.float64]]  # of each client


@dataclass
class Numbers:
    """The numbers of a fleet's clients, float64 [n] each, by name.

    Every round computes the mean and the spread over clients of all scored and recorded
    numbers, and tables, figures and data frames find them by name. To add a number to
    all methods, add an entry to ``values`` in ``compute_numbers`` below.

    Attributes:
        values: the numbers, NaN where a client has none.
        columns: the models that were scored; their numbers are called COLUMN/NUMBER.
        recorded: what the method recorded; these numbers are called recorded/NAME.
    """

    values: NumbersByName = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)


# of each fleet the ids of its clients and their numbers
OfFleets = Sequence[tuple[np.ndarray, Numbers]]


def find_finite(fleet: Fleet, uplink: Message) -> Tensor:
    """Return whether each client's message, private state and loss are finite, bool [n]
    on the CPU.
    """
    tensors = list(fleet.state.values())
    for entry in fields(uplink).values():
        if not entry.shared:
            tensors.append(entry.tensor)
    if fleet.results.losses is not None:
        tensors.append(fleet.results.losses[:, None])
    result = torch.ones(len(fleet.ids), dtype=torch.bool)
    for tensor in tensors:
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        parts = scratch.parts(tensor.flatten(1))
        # NaN passes through both; absolute values would be a copy of all rows.
        largest = [torch.maximum(part.amax(dim=1), -part.amin(dim=1)) for part in parts]
        result &= torch.cat(largest).isfinite().cpu()
    return result


def compute_numbers(
    fleet: Fleet, uplink: Message | None, finite: Tensor | None
) -> Numbers:
    """Return the numbers of a fleet's clients: scores, the method's records, and
    training statistics of participants.

    uplink, finite: what participants send, and which of them did not diverge, bool [n];
        None for observers.
    """
    result = Numbers(
        columns=list(fleet.results.scores), recorded=list(fleet.results.recorded)
    )
    result.values[SAMPLE_GRADIENTS] = fleet.results.sample_gradients.astype(np.float64)
    # Observers are scored and nothing else.
    is_observer = uplink is None
    results = fleet.results
    of_scores = results.sample_gradients if is_observer else results.scoring_gradients
    if of_scores.any():
        result.values[SCORING_GRADIENTS] = of_scores.astype(np.float64)
    for column, sums in fleet.results.scores.items():
        for name, score in fleet.resources.scores.items():
            if name not in sums:
                continue  # held-out samples have no attack
            of_score = score.numbers(name, sums[name], fleet.class_counts)
            for number, values in of_score.items():
                result.values[str(MetricName(number, column))] = values.numpy()
    if fleet.results.epsilon is not None:
        result.values[str(EPSILON)] = fleet.results.epsilon
    for name, values in fleet.results.recorded.items():
        on_host = values.detach().double().cpu()
        result.values[str(MetricName(name, RECORDED))] = on_host.numpy()
    if uplink is not None and finite is not None:
        result.values["floats_up"] = _floats(uplink, len(fleet.ids))
        result.values["diverged"] = (~finite).double().numpy()
        result.values |= _losses(fleet)
    is_attacker = np.isin(fleet.ids, fleet.resources.attackers)
    return set_apart(result, is_attacker) if is_attacker.any() else result


def set_apart(numbers: Numbers, apart: NDArray[np.bool_]) -> Numbers:
    """Return numbers in which the scores and records of some clients have the columns of
    attackers, so that they are left out of all means of the others.

    apart: which of the clients these are, bool [n].
    """
    values = {}
    for text, of_clients in numbers.values.items():
        name = MetricName.parse(text)
        if name.column in (*numbers.columns, RECORDED):
            values[text] = np.where(apart, np.nan, of_clients)
            text = str(replace(name, column=of_attackers(name.column)))
            values[text] = np.where(apart, of_clients, np.nan)
        else:
            values[text] = of_clients
    columns = [*numbers.columns, *map(of_attackers, numbers.columns)]
    return replace(numbers, values=values, columns=columns)


def _floats(uplink: Message, clients: int) -> NDArray[np.float64]:
    """Return the floats that each client sends, [n]."""
    total = torch.zeros(clients, dtype=torch.float64)
    for entry in fields(uplink).values():
        floats = entry.logical_floats()
        total += torch.as_tensor(floats, dtype=torch.float64, device="cpu")
    return total.numpy()


def _losses(fleet: Fleet) -> NumbersByName:
    """Return the losses of a fleet's last training, NaN for a client without
    samples.
    """
    empty = fleet.samples.cpu() == 0
    losses = {
        "train_loss": fleet.results.losses,
        "data_loss": fleet.results.data_losses,
    }
    return {
        name: values.cpu().masked_fill(empty, torch.nan).numpy()
        for name, values in losses.items()
        if values is not None
    }


def make_header(fleets: OfFleets, seconds: dict[str, float]) -> dict[str, Any]:
    """Return the JSON-able facts about this rank that ``gather`` needs on every rank.

    seconds: this rank's, by phase of the round.
    """
    return {
        "names": _merge(numbers.values for _, numbers in fleets),
        "columns": _merge(numbers.columns for _, numbers in fleets),
        "recorded": _merge(numbers.recorded for _, numbers in fleets),
        "seconds": seconds,
    }


@dataclass(frozen=True)
class Gathered:
    """The numbers of a round's clients, on rank 0. Making ``values`` of them can wait
    until there is time.

    Attributes:
        table: float64 [n, names], a row for each client of the audience; None on the
            other ranks.
        audience: ids of the clients that were sent to.
        clients: how many clients there are in all.
        headers: what each rank reported by ``make_header``, by rank.
        scores: the scores by name, which say how their numbers are summarised.
    """

    table: NDArray[np.float64] | None
    audience: np.ndarray
    clients: int
    headers: Sequence[dict[str, Any]]
    scores: Mapping[str, Score]

    @property
    def names(self) -> list[str]:
        """The clients' numbers, on any rank."""
        return _merge_key(self.headers, "names")

    @property
    def columns(self) -> list[str]:
        """Return the columns that any rank scored."""
        return _merge_key(self.headers, "columns")

    def select(self, name: str, ids: np.ndarray) -> NDArray[np.float64]:
        """Return a number of some clients of the audience, NaN where it is missing. On
        rank 0.
        """
        assert self.table is not None
        if name not in self.names:
            return np.full(len(ids), np.nan)
        rows = np.searchsorted(self.audience, ids)
        numbers: NDArray[np.float64] = self.table[rows, self.names.index(name)]
        return numbers

    @cached_property
    def metrics(self) -> Metrics:
        """The clients' own numbers as ``clients/NAME``, on rank 0."""
        columns = {}
        for name, values in self._columns():
            columns[str(replace(name, of_clients=True))] = values
        starts = np.array([0, len(self.audience)])
        return Metrics({}, starts, self.audience, columns, self.clients)

    def _columns(self) -> Iterator[tuple[MetricName, NDArray[np.float64]]]:
        """Yield the names and the columns of the table, [n] each."""
        assert self.table is not None
        for position, text in enumerate(self.names):
            yield MetricName.parse(text), np.ascontiguousarray(self.table[:, position])

    @cached_property
    def values(self) -> dict[str, float]:
        """The round's numbers by name, on rank 0; {} elsewhere.

        They are the summaries of the clients' numbers, and the seconds of the slowest
        worker.
        """
        if self.table is None:
            return {}
        record: dict[str, float] = {}
        by_column: dict[str, NumbersByName] = {}
        for name, values in self._columns():
            by_column.setdefault(name.column, {})[name.number] = values
        for column in self.columns:
            record |= self._summary(column, by_column[column])
        for number in _merge_key(self.headers, "recorded"):
            values = by_column[RECORDED][number]
            mean = MetricName(number, RECORDED)
            std = MetricName(f"{number}_std", RECORDED)
            record[str(mean)] = summarize("mean", values)
            record[str(std)] = summarize("std", values)
        # Whole numbers below 2^53, so that no order of adding changes the sum.
        spent = by_column.get(EPSILON.column, {}).get(EPSILON.number)
        if spent is not None:
            record[str(EPSILON)] = float(np.nanmax(spent))
        for number in (SAMPLE_GRADIENTS, SCORING_GRADIENTS):
            if number in by_column[""]:
                record[number] = float(np.nansum(by_column[""][number]))
        for phase in ("train", "score"):
            record[str(MetricName(phase, SECONDS))] = self._slowest(phase)
        return record

    def _summary(self, column: str, of_column: NumbersByName) -> dict[str, float]:
        """Summarise the scores of a column over clients, and count its clients."""
        record = {}
        for name, score in self.scores.items():
            if score.scored_on != "test" and is_held_out(column):
                continue
            for number, value in score.summary(name, of_column).items():
                record[str(MetricName(number, column))] = value
        name, score = next(iter(self.scores.items()))
        scored = ~np.isnan(score.of_clients(name, of_column))
        record[str(MetricName(CLIENTS, column))] = float(scored.sum())
        return record

    def _slowest(self, phase: str) -> float:
        """Return the seconds of the slowest worker in a phase, or of rank 0 if it is
        alone.
        """
        workers = self.headers[1:] or self.headers
        return float(max(worker["seconds"].get(phase, 0.0) for worker in workers))


@dataclass(frozen=True)
class Clusters:
    """Clients that are alike, of a round on rank 0.

    Attributes:
        groups: in which group each client is by what it sees, int64 [clients and
            newcomers].
        changing: whether that is another one in other rounds.
        found: the cluster that the method found for each client, int64 [clients], −1
            where it has none; None for a method that finds none.
    """

    groups: np.ndarray
    changing: bool
    found: NDArray[np.int64] | None

    def values(self) -> dict[str, Any]:
        """Return the cluster numbers of a scored round by name.

        They are the groups where these change, the clusters, and the adjusted Rand
        index of both (Hubert & Arabie, 1985). The index is 1 for equal partitions and 0
        on average for a random one.
        """
        record: dict[str, Any] = {}
        if self.changing:
            record["clients/recorded/group"] = self.groups.astype(np.float64)
        if self.found is None:
            return record
        # takes a second to import, and few methods find clusters
        from sklearn.metrics import adjusted_rand_score

        known = np.flatnonzero(self.found >= 0)
        found = np.full(len(self.groups), np.nan)
        found[known] = self.found[known]
        record["clients/recorded/cluster"] = found
        index = adjusted_rand_score(self.groups[known], self.found[known])
        record["recorded/adjusted_rand"] = float(index)
        return record


def gather(
    communicator: Communicator,
    placement: Placement,
    audience: np.ndarray,
    clients: int,
    fleets: OfFleets,
    headers: Sequence[dict[str, Any]],
    scores: Mapping[str, Score],
) -> Gathered:
    """Gather the numbers of all clients of the audience on rank 0. Collective call.

    fleets: of this rank. The other arguments are fields of ``Gathered``.
    """
    names = _merge_key(headers, "names")
    owner = placement.owner[audience]
    local_ids = audience[owner == communicator.rank]
    table = np.full((len(local_ids), len(names)), np.nan)
    for ids, of_fleet in fleets:
        rows = np.searchsorted(local_ids, ids)
        for name, values in of_fleet.values.items():
            table[rows, names.index(name)] = values
    whole = communicator.gather_rows(table, owner)
    return Gathered(
        table=whole,
        audience=audience,
        clients=clients,
        headers=headers,
        scores=scores,
    )


def _merge_key(headers: Sequence[dict[str, Any]], key: str) -> list[str]:
    """Merge the names under a key of the ranks' headers."""
    return _merge(header[key] for header in headers)


def _merge(lists: Iterable[Iterable[str]]) -> list[str]:
    """Merge several lists of names, without repetitions, in alphabetical order."""
    return sorted(set().union(*lists))
