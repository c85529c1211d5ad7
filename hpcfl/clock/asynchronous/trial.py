"""Trials of a method before asynchronous rounds.

They determine whether the method supports asynchronous rounds, and whether clients that
start from different models can form one fleet. In such a fleet each client receives a
separate row of the server's message. A method that reads the round of a fleet, or
expects one model for all clients, does not support this; its clients train only with
clients that start from the same model.
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
from hpcfl.simulation.dry_round import shrink
from hpcfl.simulation.message_trial import record_two_rounds
from hpcfl.simulation.prepare import Prepared

AWAY = 0.01  # difference of the models of a trial in every number


def try_asynchronous(prepared: Prepared, communicator: Communicator) -> bool:
    """Return whether clients with different start models can train side by side, the
    same on all ranks. Collective.

    Raises UserError if the method does not support asynchronous rounds.
    """
    possible = True
    with agreed(communicator):
        if prepared.store.ids:
            refuse(prepared)
            possible = can_mix(prepared)
    return all(communicator.allgather(possible))


def refuse(prepared: Prepared) -> None:
    """Raise UserError if the method does not support asynchronous rounds.

    Only ranks with clients may call it.
    """
    method = prepared.method
    reasons = [method.only_synchronous]
    for round in record_two_rounds(prepared):
        reasons.append(needs_a_round(round.sent, round.returned))
    for reason in reasons:
        if reason:
            raise UserError(
                f"time.mode = 'asynchronous': {method.name} does not support it, because "
                f"{reason}; set mode = 'synchronous'"
            )


def needs_a_round(sent: Message, returned: Message) -> str:
    """Return the reason why messages need the clients of one round together, or "".

    Uploads may only be means of values that the server sent.

    Args:
        sent: message of the server.
        returned: uploads of the clients.
    """
    for name, value in sent.items():
        models = isinstance(value, Pool | Mixture)
        if models or not wrap_entries({name: value})[name].shared:
            return f"its server sends each client a different '{name}'"
    down = wrap_entries(sent)
    for name, entry in wrap_entries(returned).items():
        if isinstance(entry, Field):
            return f"its server needs the '{name}' of each client, not only their mean"
        if entry.weights.dim() == 2:
            return (
                f"only some of a round's clients contribute to the mean of '{name}', and "
                "possibly none of those that have arrived"
            )
        if name not in down or down[name].tensor.shape != entry.tensor.shape[1:]:
            return (
                f"its server receives a '{name}' that it has not sent, so the change of a "
                "late upload is undefined"
            )
    return ""


def stack_inboxes(messages: Sequence[Inbox]) -> Inbox:
    """Return the messages of clients as one inbox [n, width], in the given order."""
    return {
        name: torch.stack([message[name] for message in messages])
        for name in messages[0]
    }


def can_mix(prepared: Prepared) -> bool:
    """Return whether two clients of a small federation compute the same in one fleet as
    each alone, if they start from different models in different rounds.

    Results must be bit-identical on a CPU. Only ranks with clients may call it. Errors
    that are not caused by a fleet with a message per client are raised.
    """
    if prepared.setup.clients < 2 or prepared.data.shifts is not None:
        return False
    on_cpu = prepared.resources.device.type == "cpu"
    same = torch.equal if on_cpu else torch.allclose
    with warnings.catch_warnings():
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
    """Return the results of both clients in one fleet.

    The result is None if the method does not support a message per client: it then
    raises an exception of the same type in two attempts. Other errors are raised.
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
    """Return the results of clients 0 and 1, or of one of them, [n, …] by name.

    Client i trains from message i in round i + 1.

    Args:
        small: small federation.
        clients: numbers of the clients, 0, 1 or both.
        messages: two messages of the server.
    """
    inbox = dict(messages[clients[0]])
    if len(clients) > 1:
        inbox = stack_inboxes(messages)
    ids = np.array(clients)
    fleet = small.make_fleet(ids, 1, True)
    fleet.rounds = ids + 1
    fleet.scoring.scores_starts = False
    uploads = wrap_entries(small.hooks.update(fleet, inbox))
    made = {f"upload {name}": entry.tensor for name, entry in uploads.items()}
    made |= {f"private {name}": rows for name, rows in fleet.state.items()}
    for column, sums in fleet.results.scores.items():
        made |= {f"{column} {name}": of_score for name, of_score in sums.items()}
    if fleet.results.losses is not None:
        made["losses"] = fleet.results.losses
    return made
