"""What clients tell of their trainings, where it decides who takes part later.

Rank 0 hears it with the clients' numbers and tells all ranks, which then choose alike.
Checkpoints have it beside the server's state, as long as the run is; the method sees
none of it.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hpcfl.clock.calendar import Calendar
from hpcfl.communication.communicator import Communicator
from hpcfl.simulation.record import Gathered

LOSS = "data_loss"  # what is told of a client's numbers
CLIENTS = "selection.clients"
LOSSES = "selection.losses"


def hear(
    calendar: Calendar | None,
    communicator: Communicator,
    number: int,
    numbers: Gathered,
) -> None:
    """Collective. Let all ranks know what the clients of a round have told.

    numbers: all clients' own, on rank 0.
    """
    if calendar is None or calendar.told is None:
        return
    cohort = calendar.step(number).cohort
    told = numbers.of(LOSS, cohort) if communicator.is_server else None
    calendar.hear(communicator.bcast_row(told, len(cohort), np.float64))


def kept(
    calendar: Calendar | None, server: Mapping[str, Tensor] | None
) -> Mapping[str, Tensor] | None:
    """The server's state as a checkpoint has it; None but on rank 0."""
    if server is None or calendar is None or calendar.told is None:
        return server
    ids, losses = calendar.told.history
    return {
        **server,
        CLIENTS: torch.from_numpy(ids),
        LOSSES: torch.from_numpy(losses),
    }


def recall(
    calendar: Calendar | None,
    communicator: Communicator,
    rounds: int,
    server: dict[str, Tensor] | None,
) -> None:
    """Collective. Take out of the server's state in a checkpoint, on rank 0, what clients
    had told by then, and let all ranks know it.

    rounds: how many had been played. Raises UserError, on all ranks, where the selection
    chooses others than it did.
    """
    if calendar is None or calendar.told is None:
        return
    ids, losses = None, None
    if server is not None:
        ids = server.pop(CLIENTS).numpy()
        losses = server.pop(LOSSES).numpy()
    length = communicator.bcast(None if ids is None else len(ids))
    calendar.recall(
        rounds,
        communicator.bcast_row(ids, length, np.int64),
        communicator.bcast_row(losses, length, np.float64),
    )
