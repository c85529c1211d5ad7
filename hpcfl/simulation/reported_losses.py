"""Training losses of clients that a selection reads in later rounds.

Rank 0 receives them with the clients' numbers and sends them to all ranks, which then
choose alike. Checkpoints store them beside the server's state. The method does not see
them.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hpcfl.clock.calendar import Calendar
from hpcfl.communication.communicator import Communicator
from hpcfl.simulation.record import Gathered

LOSS = "data_loss"  # the number of a client that selections read
CLIENTS = "selection.clients"
LOSSES = "selection.losses"


def share_losses(
    calendar: Calendar | None,
    communicator: Communicator,
    number: int,
    numbers: Gathered,
) -> None:
    """Send the losses of a round's clients to all ranks. Collective call.

    numbers: all clients' own, on rank 0.
    """
    if calendar is None or calendar.told is None:
        return
    cohort = calendar.step(number).cohort
    told = numbers.select(LOSS, cohort) if communicator.is_server else None
    calendar.hear(communicator.bcast_row(told, len(cohort), np.float64))


def add_losses(
    calendar: Calendar | None, server: Mapping[str, Tensor] | None
) -> Mapping[str, Tensor] | None:
    """Return the server's state as a checkpoint stores it, or None on other ranks than
    0.
    """
    if server is None or calendar is None or calendar.told is None:
        return server
    ids, losses = calendar.told.history
    return {
        **server,
        CLIENTS: torch.from_numpy(ids),
        LOSSES: torch.from_numpy(losses),
    }


def restore_losses(
    calendar: Calendar | None,
    communicator: Communicator,
    rounds: int,
    server: dict[str, Tensor] | None,
) -> None:
    """Move the reported losses from the server's state in a checkpoint to all ranks.
    Collective call.

    rounds: the number of played rounds. Raises UserError on all ranks if the selection
    now chooses other clients.
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
