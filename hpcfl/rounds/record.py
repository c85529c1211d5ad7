"""What a round leaves behind: every client's own numbers, gathered on rank 0, and their summary."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import Message, fields
from hpcfl.communication.placement import Placement
from hpcfl.fleet import Fleet
from hpcfl.scores._summaries import summarised
from hpcfl.scores.base import Score


@dataclass
class Numbers:
    """Of a fleet's clients: ``values`` name → [n], among them COLUMN/NUMBER of ``columns``, recorded/NAME
    of ``recorded``."""

    values: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)


Parts = Sequence[tuple[np.ndarray, Numbers]]  # ids and numbers of fleets


def finite(fleet: Fleet, uplink: Message) -> Tensor:
    """Which clients' messages, private state and loss are finite, bool [n]."""
    whole = torch.ones(len(fleet.ids), dtype=torch.bool)
    tensors = [field.tensor for field in fields(uplink).values() if not field.shared]
    tensors += [*fleet.state.values(), *([] if fleet.losses is None else [fleet.losses[:, None]])]
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            flat = tensor.flatten(1)
            # NaN passes through both; absolute values would be a copy of all rows
            whole &= torch.maximum(flat.amax(dim=1), -flat.amin(dim=1)).isfinite().cpu()
    return whole


def numbers(fleet: Fleet, uplink: Message | None, finite: Tensor | None) -> Numbers:
    """This rank's numbers: scores, what the method recorded, and of clients that took part floats sent,
    training loss, divergence."""
    mine = Numbers(columns=list(fleet.scores), recorded=list(fleet.recorded))
    for column, sums in fleet.scores.items():
        for name, score in fleet.resources.scores.items():
            own = score.numbers(name, sums[name], fleet.counts)
            mine.values |= {f"{column}/{part}": values.numpy() for part, values in own.items()}
    mine.values |= {f"recorded/{name}": values.detach().double().cpu().numpy()
                     for name, values in fleet.recorded.items()}
    if uplink is not None and finite is not None:
        floats = sum((torch.as_tensor(field.logical_floats(), dtype=torch.float64)
                      for field in fields(uplink).values()), torch.zeros(len(fleet.ids), dtype=torch.float64))
        mine.values["floats_up"] = floats.numpy()
        mine.values["diverged"] = (~finite).double().numpy()
        if fleet.losses is not None:
            mine.values["train_loss"] = fleet.losses.cpu().numpy()
    return mine


def header(parts: Parts, seconds: dict[str, float]) -> dict[str, Any]:
    """What ``gather`` needs to know of every rank, JSON-able: names of numbers, columns, recorded;
    seconds by phase."""
    return {"names": _all(one.values for _, one in parts),
            "columns": _all(one.columns for _, one in parts),
            "recorded": _all(one.recorded for _, one in parts), "seconds": seconds}


def gather(communicator: Communicator, placement: Placement, audience: np.ndarray, clients: int, parts: Parts,
           headers: Sequence[dict[str, Any]], scores: Mapping[str, Score]) -> dict[str, Any]:
    """Rank 0's record of the round: ``clients/NAME`` [clients], NaN where a client was not concerned,
    their summaries, and the slowest worker's seconds; {} elsewhere. ``parts``: ids and numbers of the fleets
    of this rank; ``headers`` by rank."""
    names, columns, recorded = (_all(one[part] for one in headers)
                                for part in ("names", "columns", "recorded"))
    mine = audience[placement.owner[audience] == communicator.rank]
    table = np.full((len(mine), len(names)), np.nan)
    for ids, of_fleet in parts:
        for name, values in of_fleet.values.items():
            table[np.searchsorted(mine, ids), names.index(name)] = values
    total = communicator.gather(table, placement.owner[audience])
    if total is None:
        return {}
    of_clients = {name: np.full(clients, np.nan) for name in names}
    for position, name in enumerate(names):
        of_clients[name][audience] = total[:, position]
    record: dict[str, Any] = {f"clients/{name}": values for name, values in of_clients.items()}
    for column in columns:
        prefix = f"{column}/"
        own = {name.removeprefix(prefix): of_clients[name] for name in names if name.startswith(prefix)}
        for name, score in scores.items():
            record |= {f"{column}/{part}": value for part, value in score.summary(name, own).items()}
    for name in recorded:
        values = of_clients[f"recorded/{name}"]
        record |= {f"recorded/{name}": summarised("mean", values),
                   f"recorded/{name}_std": summarised("std", values)}
    workers = [one["seconds"] for one in headers[min(1, len(headers) - 1):]]
    record |= {f"seconds/{phase}": max(worker.get(phase, 0.0) for worker in workers)
               for phase in ("train", "score")}
    return record


def _all(lists: Iterable[Iterable[str]]) -> list[str]:
    """All names of several lists, each once, in alphabetical order."""
    return sorted({name for names in lists for name in names})
