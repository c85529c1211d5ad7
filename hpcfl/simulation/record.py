"""Metrics of a round: numbers of every client, gathered on rank 0, and their summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.clients.fleet import Fleet
from hpcfl.clients.scoring import locate_score_errors, require_rows
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.exchange import Placement
from hpcfl.communication.message import Message, wrap_entries
from hpcfl.files import scratch
from hpcfl.scores.base import Score, summarise
from hpcfl.scores.metric_names import (
    CLIENTS,
    EPSILON,
    RECORDED,
    SAMPLE_GRADIENTS,
    SCORING_GRADIENTS,
    SECONDS,
    MetricName,
    has_scores,
    is_held_out,
    name_attackers,
)
from hpcfl.storage.results import Metrics, make_one_round

# Numbers of some clients by name, float64 [n] each, NaN for clients without a value.
# Names are COLUMN/NUMBER for a scored model, recorded/NAME for records of a method.
Numbers = dict[str, NDArray[np.float64]]
# The client ids and the numbers of each fleet.
FleetNumbers = Sequence[tuple[np.ndarray, Numbers]]


def find_finite(fleet: Fleet, uplink: Message) -> Tensor:
    """Return whether each client's message, private state and loss are finite.

    Args:
        fleet: participants of the round.
        uplink: their message.

    Returns:
        A mask of the clients without NaN and Inf, bool [n] on the CPU.
    """
    tensors = list(fleet.state.values())
    for entry in wrap_entries(uplink).values():
        if not entry.shared:
            tensors.append(entry.tensor)
    if fleet.results.losses is not None:
        tensors.append(fleet.results.losses[:, None])
    result = torch.ones(len(fleet.ids), dtype=torch.bool)
    for tensor in tensors:
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        parts = scratch.split_rows(tensor[:, None].flatten(1))
        # NaN propagates through both; absolute values would need a copy of all rows.
        largest = [torch.maximum(part.amax(dim=1), -part.amin(dim=1)) for part in parts]
        result &= torch.cat(largest).isfinite().cpu()
    return result


def compute_numbers(
    fleet: Fleet, uplink: Message | None = None, finite: Tensor | None = None
) -> Numbers:
    """Return the numbers of a fleet's clients: scores, records and training statistics.

    Every round stores them, with mean and deviation of scores and records. Tables,
    figures and data frames find them by name. A number added here is stored for all
    methods.

    Args:
        fleet: clients of the round.
        uplink: message of participants; None for clients that are only scored.
        finite: mask of the participants that did not diverge, bool [n]; None for
            clients that are only scored.

    Raises:
        UserError: A score does not return a number for each client.
    """
    results = fleet.results
    numbers: Numbers = {SAMPLE_GRADIENTS: results.sample_gradients.astype(np.float64)}
    of_scores = results.scoring_gradients
    if uplink is None:  # the clients are only scored
        of_scores = results.sample_gradients
    if of_scores.any():
        numbers[SCORING_GRADIENTS] = of_scores.astype(np.float64)
    numbers |= _compute_scores(fleet)
    if results.epsilon is not None:
        numbers[str(EPSILON)] = results.epsilon
    for name, values in results.recorded.items():
        on_host = values.detach().double().cpu()
        numbers[str(MetricName(name, RECORDED))] = on_host.numpy()
    if uplink is not None and finite is not None:
        numbers["floats_up"] = _count_floats(uplink, len(fleet.ids))
        numbers["diverged"] = (~finite).double().numpy()
        numbers |= _select_losses(fleet)
    is_attacker = np.isin(fleet.ids, fleet.resources.attackers)
    if is_attacker.any():
        return separate_attackers(numbers, is_attacker)
    return numbers


def _compute_scores(fleet: Fleet) -> Numbers:
    """Return the scores of a fleet's clients, as COLUMN/NUMBER.

    Raises:
        UserError: A score does not return a number for each client.
    """
    numbers = {}
    for column, sums in fleet.results.scores.items():
        for name, score in fleet.resources.scores.items():
            if name not in sums:
                continue  # scores of an attack are not computed on held-out samples
            of_score = score.numbers(name, sums[name], fleet.class_counts)
            for number, values in of_score.items():
                with locate_score_errors(name, score, "number"):
                    require_rows(values, len(fleet.ids))
                numbers[str(MetricName(number, column))] = values.numpy()
    return numbers


def separate_attackers(numbers: Numbers, is_attacker: NDArray[np.bool_]) -> Numbers:
    """Move the scores and records of attackers into separate columns.

    Means over the other clients then exclude attackers.

    Args:
        numbers: numbers of clients by name.
        is_attacker: mask of the attackers, bool [n].
    """
    result = dict(numbers)
    for text, values in numbers.items():
        name = MetricName.parse(text)
        if name.column == RECORDED or has_scores(name.column):
            of_attackers = replace(name, column=name_attackers(name.column))
            result[text] = np.where(is_attacker, np.nan, values)
            result[str(of_attackers)] = np.where(is_attacker, values, np.nan)
    return result


def _count_floats(uplink: Message, clients: int) -> NDArray[np.float64]:
    """Return the number of floats that each client sends, [n]."""
    total = torch.zeros(clients, dtype=torch.float64)
    for entry in wrap_entries(uplink).values():
        floats = entry.count_floats()
        total += torch.as_tensor(floats, dtype=torch.float64, device="cpu")
    return total.numpy()


def _select_losses(fleet: Fleet) -> Numbers:
    """Return the losses of a fleet's last training, NaN for clients without a step."""
    idle = torch.from_numpy(fleet.results.sample_gradients == 0)
    losses = {
        "train_loss": fleet.results.losses,
        "data_loss": fleet.results.data_losses,
    }
    return {
        name: values.cpu().masked_fill(idle, torch.nan).numpy()
        for name, values in losses.items()
        if values is not None
    }


def list_names(fleets: FleetNumbers) -> list[str]:
    """Return the names of the numbers of some fleets, in alphabetical order."""
    return sorted({name for _, numbers in fleets for name in numbers})


@dataclass(frozen=True)
class Gathered:
    """Numbers of a round's clients, and their summary on rank 0.

    The summary is computed at the first use of ``values``, possibly after later rounds
    have begun.

    Attributes:
        names: names of the clients' numbers, on all ranks.
        clients: numbers as ``clients/NAME``, with an entry for each client of the
            audience; empty on other ranks than 0.
        seconds: seconds of each rank by phase of the round.
        scores: scores by name, which determine how their numbers are summarised.
    """

    names: list[str]
    clients: Metrics
    seconds: Sequence[Mapping[str, float]]
    scores: Mapping[str, Score]

    @cached_property
    def by_column(self) -> dict[str, Numbers]:
        """The clients' numbers by column and number; {} on other ranks than 0."""
        found: dict[str, Numbers] = {}
        for text, values in self.clients.columns.items():
            name = MetricName.parse(text)
            found.setdefault(name.column, {})[name.number] = values
        return found

    @property
    def columns(self) -> list[str]:
        """The columns of the scored models; none on other ranks than 0."""
        return sorted(filter(has_scores, self.by_column))

    def select(self, name: str, ids: np.ndarray) -> NDArray[np.float64]:
        """Return a number of some clients, NaN if it is missing. Only on rank 0.

        Args:
            name: name of the number.
            ids: ids of clients of the audience.
        """
        column = self.clients.columns.get(f"{CLIENTS}/{name}")
        if column is None:
            return np.full(len(ids), np.nan)
        numbers: NDArray[np.float64] = column[np.searchsorted(self.clients.ids, ids)]
        return numbers

    @cached_property
    def values(self) -> dict[str, float]:
        """The round's metrics by name, on rank 0; {} on other ranks.

        They are summaries of the clients' numbers, and the seconds of the slowest
        worker.
        """
        if not self.clients.columns:
            return {}
        record: dict[str, float] = {}
        by_column = self.by_column
        for column in self.columns:
            record |= self._summarise(column, by_column[column])
        for number, values in by_column.get(RECORDED, {}).items():
            mean = MetricName(number, RECORDED)
            std = MetricName(f"{number}_std", RECORDED)
            record[str(mean)] = summarise("mean", values)
            record[str(std)] = summarise("std", values)
        spent = by_column.get(EPSILON.column, {}).get(EPSILON.number)
        if spent is not None:
            record[str(EPSILON)] = float(np.nanmax(spent))
        # Integers below 2^53 have exact sums in any order.
        for number in (SAMPLE_GRADIENTS, SCORING_GRADIENTS):
            if number in by_column[""]:
                record[number] = float(np.nansum(by_column[""][number]))
        for phase in ("train", "score"):
            record[str(MetricName(phase, SECONDS))] = self._find_slowest(phase)
        return record

    def _summarise(self, column: str, of_column: Numbers) -> dict[str, float]:
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

    def _find_slowest(self, phase: str) -> float:
        """Return the seconds of the slowest worker in a phase, or of a single rank."""
        workers = self.seconds[1:] or self.seconds
        return float(max(seconds.get(phase, 0.0) for seconds in workers))


def describe_clusters(
    groups: np.ndarray, groups_change: bool, found: NDArray[np.int64] | None
) -> dict[str, Any]:
    """Return the cluster metrics of a scored round by name.

    They are the groups if these change, the clusters, and the adjusted Rand index
    between groups and clusters (Hubert & Arabie, 1985). The index is 1 for equal
    partitions, and 0 on average for a random partition.

    Args:
        groups: group of each client by its data distribution, int64 [clients and
            newcomers].
        groups_change: whether groups differ between rounds.
        found: cluster that the method assigns to each client, int64 [clients], −1
            without one; None for a method without clusters.
    """
    record: dict[str, Any] = {}
    if groups_change:
        record["clients/recorded/group"] = groups.astype(np.float64)
    if found is None:
        return record
    # The import takes a second, and few methods find clusters.
    from sklearn.metrics import adjusted_rand_score

    known = np.flatnonzero(found >= 0)
    of_clients = np.full(len(groups), np.nan)
    of_clients[known] = found[known]
    record["clients/recorded/cluster"] = of_clients
    index = adjusted_rand_score(groups[known], found[known])
    record["recorded/adjusted_rand"] = float(index)
    return record


def gather(
    communicator: Communicator,
    placement: Placement,
    audience: np.ndarray,
    clients: int,
    fleets: FleetNumbers,
    names: Sequence[str],
) -> Metrics:
    """Return the numbers of all clients of the audience on rank 0. Collective call.

    Args:
        communicator: communicator of all ranks.
        placement: rank of each client.
        audience: ids of the clients that received a message.
        clients: total number of clients.
        fleets: numbers of this rank's clients.
        names: names of the numbers of any rank.

    Returns:
        The numbers as ``clients/NAME``; no numbers on other ranks than 0.
    """
    owner = placement.owner[audience]
    local_ids = audience[owner == communicator.rank]
    table = np.full((len(local_ids), len(names)), np.nan)
    for ids, of_fleet in fleets:
        rows = np.searchsorted(local_ids, ids)
        for name, values in of_fleet.items():
            table[rows, names.index(name)] = values
    whole = communicator.gather_rows(table, owner)
    if whole is None:
        return Metrics()
    columns = {}
    for name, values in zip(names, whole.T, strict=True):
        columns[f"{CLIENTS}/{name}"] = np.ascontiguousarray(values)
    return make_one_round(audience, columns, clients)
