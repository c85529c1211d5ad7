"""What a round leaves behind: every client's own numbers, gathered on rank 0, and their
summary.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import Message, fields
from hpcfl.communication.placement import Placement
from hpcfl.files import scratch
from hpcfl.fleet import Fleet
from hpcfl.scores._metric_name import CLIENTS, RECORDED, SECONDS, MetricName
from hpcfl.scores._summaries import summarised
from hpcfl.scores.base import Score


@dataclass
class Numbers:
    """The numbers of a fleet's clients, float64 [n] each, by name.

    columns: those that were scored; their numbers are called COLUMN/NUMBER. recorded:
    what the method recorded; these numbers are called recorded/NAME. Of both the mean
    and the spread over clients are computed for every round, and tables, figures and
    data frames know them by their names: a further number of all methods is one more
    entry here, made in ``numbers``.
    """

    values: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)


OfFleets = Sequence[
    tuple[np.ndarray, Numbers]
]  # of each fleet the ids of its clients and their numbers


def finite(fleet: Fleet, uplink: Message) -> Tensor:
    """Which clients' messages, private state and loss are all finite, bool [n] on the
    CPU.
    """
    good = torch.ones(len(fleet.ids), dtype=torch.bool)
    tensors = [field.tensor for field in fields(uplink).values() if not field.shared]
    tensors += [
        *fleet.state.values(),
        *([] if fleet.losses is None else [fleet.losses[:, None]]),
    ]
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            # NaN passes through both; absolute values would be a copy of all rows.
            largest = [
                torch.maximum(part.amax(dim=1), -part.amin(dim=1))
                for part in scratch.parts(tensor.flatten(1))
            ]
            good &= torch.cat(largest).isfinite().cpu()
    return good


def numbers(fleet: Fleet, uplink: Message | None, finite: Tensor | None) -> Numbers:
    """The numbers of a fleet's clients: scores, what the method recorded, and how
    participants trained.

    uplink, finite: what participants send, and which of them did not diverge, bool [n];
    None for observers.
    """
    result = Numbers(columns=list(fleet.scores), recorded=list(fleet.recorded))
    for column, sums in fleet.scores.items():
        for name, score in fleet.resources.scores.items():
            of_score = score.numbers(name, sums[name], fleet.counts)
            for part, values in of_score.items():
                result.values[str(MetricName(part, column))] = values.numpy()
    for name, values in fleet.recorded.items():
        on_host = values.detach().double().cpu()
        result.values[str(MetricName(name, RECORDED))] = on_host.numpy()
    if uplink is not None and finite is not None:
        floats = sum(
            (
                torch.as_tensor(
                    field.logical_floats(), dtype=torch.float64, device="cpu"
                )
                for field in fields(uplink).values()
            ),
            torch.zeros(len(fleet.ids), dtype=torch.float64),
        )
        result.values["floats_up"] = floats.numpy()
        result.values["diverged"] = (~finite).double().numpy()
        for name, losses in (
            ("train_loss", fleet.losses),
            ("data_loss", fleet.data_losses),
        ):
            if losses is not None:  # a client without samples has none
                result.values[name] = (
                    losses.cpu()
                    .masked_fill(fleet.samples.cpu() == 0, torch.nan)
                    .numpy()
                )
    return result


def header(fleets: OfFleets, seconds: dict[str, float]) -> dict[str, Any]:
    """What ``gather`` needs to know of every rank beforehand, JSON-able.

    seconds: this rank's, by phase of the round.
    """
    return {
        "names": _all(numbers.values for _, numbers in fleets),
        "columns": _all(numbers.columns for _, numbers in fleets),
        "recorded": _all(numbers.recorded for _, numbers in fleets),
        "seconds": seconds,
    }


@dataclass(frozen=True)
class Gathered:
    """The numbers of a round's clients, on rank 0. Making ``values`` of them can wait
    until there is time.

    table: float64 [n, names], a row for each client of the audience; None on the other
        ranks.
    audience: ids of the clients that were sent to. clients: how many there are in all.
    headers: of all ranks, by rank.
    """

    table: NDArray[np.float64] | None
    audience: np.ndarray
    clients: int
    headers: Sequence[dict[str, Any]]
    scores: Mapping[str, Score]

    @property
    def columns(self) -> list[str]:
        """What was scored, on any rank."""
        return _names(self.headers)[1]

    @cached_property
    def values(self) -> dict[str, Any]:
        """The round's numbers by name, on rank 0; {} elsewhere.

        They are each client's own, ``clients/NAME`` [clients], NaN where it has none,
        their summaries over clients, and the seconds of the slowest worker.
        """
        if self.table is None:
            return {}
        names, columns, recorded = _names(self.headers)
        record: dict[str, Any] = {}
        of_columns: dict[str, dict[str, NDArray[np.float64]]] = {}
        for position, text in enumerate(names):
            name = replace(MetricName.parse(text), of_clients=True)
            numbers = np.full(self.clients, np.nan)
            numbers[self.audience] = self.table[:, position]
            record[str(name)] = numbers
            of_columns.setdefault(name.column, {})[name.number] = numbers
        for column in columns:
            of_column = of_columns[column]
            for score_name, score in self.scores.items():
                summary = score.summary(score_name, of_column)
                for part, value in summary.items():
                    record[str(MetricName(part, column))] = value
            score_name, score = next(iter(self.scores.items()))
            known = ~np.isnan(score.of_clients(score_name, of_column))
            record[str(MetricName(CLIENTS, column))] = float(known.sum())
        for number in recorded:
            numbers = record[str(MetricName(number, RECORDED, of_clients=True))]
            for kind, ending in (("mean", ""), ("std", "_std")):
                name = MetricName(f"{number}{ending}", RECORDED)
                record[str(name)] = summarised(kind, numbers)
        first_worker = min(1, len(self.headers) - 1)  # rank 0 if alone
        workers = [header["seconds"] for header in self.headers[first_worker:]]
        for phase in ("train", "score"):
            slowest = max(worker.get(phase, 0.0) for worker in workers)
            record[str(MetricName(phase, SECONDS))] = slowest
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
    """Collective. The numbers of all clients that were sent to, on rank 0.

    fleets: of this rank. The other arguments are fields of ``Gathered``.
    """
    names, *_ = _names(headers)
    mine = audience[placement.owner[audience] == communicator.rank]
    table = np.full((len(mine), len(names)), np.nan)
    for ids, of_fleet in fleets:
        for name, values in of_fleet.values.items():
            table[np.searchsorted(mine, ids), names.index(name)] = values
    whole = communicator.gather_rows(table, placement.owner[audience])
    return Gathered(whole, audience, clients, headers, scores)


def _names(headers: Sequence[dict[str, Any]]) -> tuple[list[str], list[str], list[str]]:
    """Of all numbers, of what was scored and of what was recorded, on any rank."""
    names, columns, recorded = (
        _all(one[key] for one in headers) for key in ("names", "columns", "recorded")
    )
    return names, columns, recorded


def _all(lists: Iterable[Iterable[str]]) -> list[str]:
    """The names in several lists, each once, in alphabetical order."""
    return sorted({name for names in lists for name in names})
