"""What a round leaves behind: every client's own numbers, gathered on rank 0, and their summary."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import Message, fields
from hpcfl.communication.placement import Placement
from hpcfl.fleet import Fleet
from hpcfl.rounds.evaluation import mean_and_std, personalised, summary

Columns = dict[str, NDArray[np.float64]]
Parts = Sequence[tuple[np.ndarray, Columns]]  # ids and columns of fleets
SCORED = ("correct", "total", "loss")


def healthy(fleet: Fleet, uplink: Message) -> Tensor:
    """Which clients' messages, private state and loss are finite, bool [n]."""
    fine = torch.ones(len(fleet.ids), dtype=torch.bool)
    tensors = [field.tensor for field in fields(uplink).values() if not field.shared]
    tensors += [*fleet.state.values(), *([] if fleet.losses is None else [fleet.losses[:, None]])]
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            fine &= tensor.flatten(1).abs().amax(dim=1).isfinite().cpu()  # NaN passes through a maximum
    return fine


def columns(fleet: Fleet, uplink: Message | None, fine: Tensor | None) -> Columns:
    """This rank's numbers, name → [n]: scores, and of clients that took part floats sent, training loss, divergence."""
    found: Columns = {}
    for name, score in fleet.scores.items():
        for part in SCORED:
            found[f"{name}/{part}"] = getattr(score, part).numpy()
        if score.by_class.shape[1]:
            found |= {f"{name}/{key}": value for key, value in personalised(score.by_class, tested(fleet), fleet.counts).items()}
    found |= {f"notes/{name}": values.detach().double().cpu().numpy() for name, values in fleet.notes.items()}
    if uplink is not None and fine is not None:
        floats = sum((torch.as_tensor(field.logical_floats(), dtype=torch.float64)
                      for field in fields(uplink).values()), torch.zeros(len(fleet.ids), dtype=torch.float64))
        found["floats_up"] = floats.numpy()
        found["diverged"] = (~fine).double().numpy()
        if fleet.losses is not None:
            found["train_loss"] = fleet.losses.cpu().numpy()
    return found


def tested(fleet: Fleet) -> Tensor:
    """Test samples of each class, the same for all clients, float64 [classes]."""
    samples = fleet.hardware.samples
    labels = samples.y[torch.from_numpy(samples.test[int(fleet.ids[0])]).to(samples.device)]
    return torch.bincount(labels, minlength=samples.classes).double().cpu()


def header(parts: Parts, seconds: dict[str, float]) -> list[Any]:
    """What ``gather`` needs to know of every rank, JSON-able: names of columns, and seconds by phase."""
    return [sorted({name for _, found in parts for name in found}), seconds]


def gather(communicator: Communicator, placement: Placement, audience: np.ndarray, clients: int, parts: Parts,
           headers: Sequence[list[Any]]) -> dict[str, Any]:
    """Rank 0's record of the round: ``clients/NAME`` [clients], NaN where a client was not concerned, their summaries, and
    the slowest worker's seconds; {} elsewhere. ``parts``: ids and columns of the fleets of this rank; ``headers`` by rank."""
    names = sorted({name for own, _ in headers for name in own})
    mine = audience[placement.owner[audience] == communicator.rank]
    table = np.full((len(mine), len(names)), np.nan)
    for ids, found in parts:
        for name, values in found.items():
            table[np.searchsorted(mine, ids), names.index(name)] = values
    total = communicator.gather(table, placement.owner[audience])
    if total is None:
        return {}
    record: dict[str, Any] = {}
    for position, name in enumerate(names):
        record[f"clients/{name}"] = np.full(clients, np.nan)
        record[f"clients/{name}"][audience] = total[:, position]
    for name in (name for name in names if "/" in name):
        score, _, part = name.partition("/")
        if part == "correct":
            samples = record[f"clients/{score}/total"]
            record |= {f"{score}/{key}": value for key, value in summary(record[f"clients/{name}"], samples).items()}
        elif part not in SCORED:
            record[name], record[f"{name}_std"] = mean_and_std(record[f"clients/{name}"])
    workers = [worker for _, worker in headers[min(1, len(headers) - 1):]]
    record |= {f"seconds/{phase}": max(worker.get(phase, 0.0) for worker in workers) for phase in ("train", "score")}
    return record
