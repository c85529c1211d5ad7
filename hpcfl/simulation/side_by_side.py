"""Clients who started from different models of the server, in one fleet.

Each gets its own row of what the server sent, as if it had been sent to it alone. A
method that reads the round of a fleet, or expects one model for all, cannot be played
so; its clients train beside those alone who started from the same model.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hpcfl.communication.message import Inbox, fields
from hpcfl.errors import is_shortage
from hpcfl.simulation.dry_round import brief_fleet, shrink
from hpcfl.simulation.prepare import Prepared

AWAY = 0.01  # by which the models of a trial differ in every number


def rows_of(messages: Sequence[Inbox]) -> Inbox:
    """Stack the messages of clients into one inbox [n, width], in their order."""
    return {
        name: torch.stack([message[name] for message in messages])
        for name in messages[0]
    }


def is_possible(prepared: Prepared) -> bool:
    """Return whether two clients of a small federation make the same, to the last bit on
    a CPU, in one fleet and each in its own, if they start from different models in
    different rounds.

    A rank that hosts clients calls it. Errors that do not come from a fleet with a
    message for each client are raised.
    """
    if prepared.setup.clients < 2 or prepared.shifts is not None:
        return False
    device = prepared.resources.device
    devices = [device] if device.type == "cuda" else []
    same = torch.equal if device.type == "cpu" else torch.allclose
    with torch.random.fork_rng(devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = shrink(prepared, prepared.resources.kernel.widest)
        messages = _messages(small)
        alone = [_made(small, [one], messages) for one in (0, 1)]
        together = _made_together(small, messages)
    if together is None:
        return False
    return all(
        same(rows, torch.cat([one[name] for one in alone]))
        for name, rows in together.items()
    )


def _made_together(small: Prepared, messages: list[Inbox]) -> dict[str, Tensor] | None:
    """Return what both clients make in one fleet; None if the method does not expect a
    message for each client.

    A method may fail in any way then, and fails in the same way again. Any other error
    is raised.
    """
    try:
        return _made(small, [0, 1], messages)
    except Exception as error:
        if is_shortage(error):
            raise
        first = error
    try:
        _made(small, [0, 1], messages)
    except type(first):
        return None
    raise first


def _messages(small: Prepared) -> list[Inbox]:
    """Return two messages of the server that differ in every floating-point number."""
    device = small.resources.device
    server = small.hooks.initial_state("server_state", small.setup)
    audience = small.audience(np.array(small.store.ids), 1)
    sent = fields(small.hooks.compose("send", server, audience))
    first = {name: entry.tensor.to(device) for name, entry in sent.items()}
    second = {
        name: tensor + AWAY if tensor.is_floating_point() else tensor
        for name, tensor in first.items()
    }
    return [first, second]


def _made(
    small: Prepared, clients: list[int], messages: list[Inbox]
) -> dict[str, Tensor]:
    """Return the results of clients 0 and 1, or of one, [n, …] by name. Client i trains
    from message i in round i + 1.
    """
    inbox = dict(messages[clients[0]])
    if len(clients) > 1:
        inbox = rows_of(messages)
    ids = np.array(clients)
    fleet = small.fleet(ids, 1, True, brief_fleet)
    fleet.rounds = ids + 1
    fleet.scores_starts = False
    inboxes = small.hooks.open(fleet, inbox)
    returned = small.method.update(fleet, inboxes.pop())
    uploads = fields(small.hooks.seal(fleet, inboxes, returned))
    made = {f"upload {name}": entry.tensor for name, entry in uploads.items()}
    made |= {f"private {name}": rows for name, rows in fleet.state.items()}
    for column, sums in fleet.scores.items():
        made |= {f"{column} {name}": of_score for name, of_score in sums.items()}
    if fleet.losses is not None:
        made["losses"] = fleet.losses
    return made
