"""Trials of a method before asynchronous rounds: whether it can be played so, and
whether clients that started from different models may be one fleet.

In such a fleet each client gets its own row of what the server sent, as if it had been
sent to it alone. A method that reads the round of a fleet, or expects one model for
all, cannot be played so; its clients train only beside those that started from the same
model.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.communication.message import (
    Field,
    Inbox,
    Message,
    Mixture,
    Pool,
    wrap_entries,
)
from hpcfl.errors import UserError, is_shortage
from hpcfl.simulation.dry_round import record_two_rounds, shrink
from hpcfl.simulation.prepare import Prepared

AWAY = 0.01  # by which the models of a trial differ in every number


def try_asynchronous(prepared: Prepared, communicator: Communicator) -> bool:
    """Return whether clients with different start models train side by side, on all
    ranks alike. Collective call.

    Raises UserError where the method cannot be played asynchronously.
    """
    possible = True
    with agreed(communicator):
        if prepared.store.ids:
            refuse(prepared)
            possible = can_mix(prepared)
    return all(communicator.allgather(possible))


def refuse(prepared: Prepared) -> None:
    """Raise UserError where the method cannot be played asynchronously. To be called on
    a rank that hosts clients.
    """
    method = prepared.method
    reasons = [method.only_synchronous]
    for round in record_two_rounds(prepared):
        reasons.append(needs_a_round(round.sent, round.returned))
    for reason in reasons:
        if reason:
            raise UserError(
                f"time.mode = 'asynchronous': {method.name} cannot, because {reason}; "
                "take mode = 'synchronous'"
            )


def needs_a_round(sent: Message, returned: Message) -> str:
    """Return why messages need the clients of one round together, or "". A message that
    is more than a mean of what the server sent does.
    """
    for name, value in sent.items():
        models = isinstance(value, Pool | Mixture)
        if models or not wrap_entries({name: value})[name].shared:
            return f"its server sends clients a '{name}' of their own"
    down = wrap_entries(sent)
    for name, entry in wrap_entries(returned).items():
        if isinstance(entry, Field):
            return f"its server needs each client's own '{name}' and not their mean"
        if entry.weights.dim() == 2:
            return (
                f"only some of a round's clients contribute to the mean of '{name}', and "
                "possibly none of those that have arrived"
            )
        if name not in down or down[name].tensor.shape != entry.tensor.shape[1:]:
            return (
                f"its server receives a '{name}' that it has not sent, so a late upload "
                "has no start to be a change from"
            )
    return ""


def stack_inboxes(messages: Sequence[Inbox]) -> Inbox:
    """Stack the messages of clients into one inbox [n, width], in their order."""
    return {
        name: torch.stack([message[name] for message in messages])
        for name in messages[0]
    }


def can_mix(prepared: Prepared) -> bool:
    """Return whether two clients of a small federation make the same, to the last bit on
    a CPU, in one fleet and each in its own, if they start from different models in
    different rounds.

    A rank that hosts clients calls it. Errors that do not come from a fleet with a
    message for each client are raised.
    """
    if prepared.setup.clients < 2 or prepared.data.shifts is not None:
        return False
    device = prepared.resources.device
    devices = [device] if device.type == "cuda" else []
    same = torch.equal if device.type == "cpu" else torch.allclose
    with torch.random.fork_rng(devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = shrink(prepared, prepared.resources.kernel.widest)
        messages = _make_messages(small)
        alone = [train_small(small, [one], messages) for one in (0, 1)]
        together = _make_together(small, messages)
    if together is None:
        return False
    return all(
        same(rows, torch.cat([one[name] for one in alone]))
        for name, rows in together.items()
    )


def _make_together(small: Prepared, messages: list[Inbox]) -> dict[str, Tensor] | None:
    """Return what both clients make in one fleet; None if the method does not expect a
    message for each client.

    A method may fail in any way then, and fails in the same way again. Any other error
    is raised.
    """
    try:
        return train_small(small, [0, 1], messages)
    except Exception as error:
        if is_shortage(error):
            raise
        first = error
    try:
        train_small(small, [0, 1], messages)
    except type(first):
        return None
    raise first


def _make_messages(small: Prepared) -> list[Inbox]:
    """Return two messages of the server that differ in every floating-point number."""
    device = small.resources.device
    server = small.hooks.make_initial_state("server_state", small.setup)
    audience = small.make_audience(np.array(small.store.ids), 1)
    sent = wrap_entries(small.hooks.compose("send", server, audience))
    first = {name: entry.tensor.to(device) for name, entry in sent.items()}
    second = {
        name: tensor + AWAY if tensor.is_floating_point() else tensor
        for name, tensor in first.items()
    }
    return [first, second]


def train_small(
    small: Prepared, clients: list[int], messages: list[Inbox]
) -> dict[str, Tensor]:
    """Return the results of clients 0 and 1, or of one, [n, …] by name. Client i trains
    from message i in round i + 1.
    """
    inbox = dict(messages[clients[0]])
    if len(clients) > 1:
        inbox = stack_inboxes(messages)
    ids = np.array(clients)
    fleet = small.make_fleet(ids, 1, True)
    fleet.rounds = ids + 1
    fleet.scoring.scores_starts = False
    received = small.hooks.receive(fleet, inbox)
    returned = small.method.update(fleet, received[-1])
    uploads = wrap_entries(small.hooks.upload(fleet, received, returned))
    made = {f"upload {name}": entry.tensor for name, entry in uploads.items()}
    made |= {f"private {name}": rows for name, rows in fleet.state.items()}
    for column, sums in fleet.results.scores.items():
        made |= {f"{column} {name}": of_score for name, of_score in sums.items()}
    if fleet.results.losses is not None:
        made["losses"] = fleet.results.losses
    return made
