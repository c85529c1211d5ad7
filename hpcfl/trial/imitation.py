"""A round of the method on an imitated federation, in which one client with two samples
takes part.

Where there will be newcomers, another such client joins after it.

Model, loss, kernel and messages are the real ones. Where the server aggregates, the
client's message stands for those of all clients.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hpcfl.communication import exchange
from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.message import Inbox, Mean, Message, fields
from hpcfl.communication.placement import Placement
from hpcfl.errors import UserError
from hpcfl.fleet import BUFFERS, Fleet, Resources
from hpcfl.fleet.execution import choose
from hpcfl.fleet.frozen import head_kernel
from hpcfl.fleet.stopwatch import Stopwatch
from hpcfl.methods.base import State
from hpcfl.preparation.prepare import Prepared
from hpcfl.rounds import record
from hpcfl.storage.clients import ClientStore
from hpcfl.trial.failure import Failure, trying

SAMPLES = 2  # of the client that takes part
FLOATS = (
    1 << 24
)  # the most in the models of all imitated clients: of large models there are fewer clients
FEWEST = 2  # clients, however large the models
CLIENT = np.array([0])  # the ids of the cohort
SERVER_SIDE = ("server_state", "send", "aggregate", "greet")  # hooks that run on rank 0
BEATS = (
    10  # heartbeats of one computation on the server, after which it counts as working
)


class Enough(Exception):
    """Ends a long computation on the server, which has worked so far."""


# Failures on the server's side that are no mistakes: here all clients' messages are
# equal, which may be too odd for a method. torch documents LinAlgError in this place,
# but its annotations do not count it as public.
EXCUSED = (
    ValueError,
    ArithmeticError,
    AssertionError,
    Enough,
    torch.linalg.LinAlgError,  # type: ignore[attr-defined]
)


class BriefFleet(Fleet):
    """A fleet that trains for one epoch at most."""

    def _epochs(self, epochs: int | None) -> int:
        return min(super()._epochs(epochs), 1)


def play(prepared: Prepared, lanes: int) -> set[str]:
    """Play a round and the final scoring with at most ``lanes`` lanes. Raises Failure.

    Returns the operators that were called and give a lane bits that depend on the lanes
    beside.
    """
    small = imitate(prepared, lanes)
    _play(prepared, small)
    head = small.resources.head
    of_heads = head.kernel.dependent if head else set()
    return {*small.resources.kernel.dependent, *of_heads}


def _play(prepared: Prepared, small: Prepared) -> None:
    """Play a round and the final scoring of ``small``, which imitates ``prepared``.

    What may fail on the server only because the federation is imitated is passed over.
    Raises Failure.
    """
    last = prepared.config.rounds + 1
    everyone = replace(
        small.cohort(np.arange(small.setup.clients), 1), beat=impatient()
    )
    try:
        with trying("server_state"):
            server = small.method.server_state(small.setup)
        message, uplink = client_side(small, sent(small, server, 1))
        with trying("aggregate"):
            uploads = {
                name: arrived
                if isinstance(message[name], Mean)
                else arrived.repeat(small.setup.clients, 1)
                for name, arrived in uplink.items()
            }
            small.method.aggregate(server, everyone, uploads)
        inbox = sent(small, server, last)
        greeting = (
            sent(small, server, last, small.newcomer_ids, "greet")
            if small.newcomers.ids
            else {}
        )
    except Failure as failure:
        fewer = small.setup.clients < prepared.setup.clients
        if str(failure) in SERVER_SIDE and (
            fewer or isinstance(failure.__cause__, EXCUSED)
        ):
            return
        raise
    with trying("finish"):
        small.method.finish(fleet(small, last), inbox)
    if small.newcomers.ids:
        newcomer = brief(small.new_fleet())
        with trying("inherit"):
            small.method.inherit(newcomer, greeting)
        with trying("join"):
            small.method.join(newcomer, greeting)


def imitate(prepared: Prepared, lanes: int) -> Prepared:
    """The experiment with one client of two samples, and a kernel and store of its own.
    Raises Failure.
    """
    real, method = prepared.resources, prepared.method
    clients = min(
        prepared.setup.clients, max(FEWEST, FLOATS // prepared.setup.layout.width)
    )
    new = [clients] if prepared.config.newcomers.clients else []
    samples = real.samples.dealt(
        dict.fromkeys([0, *new], np.arange(min(SAMPLES, len(real.samples.y))))
    )
    counts = samples.counts(0).repeat(clients + len(new), 1)
    setup = replace(prepared.setup, counts=counts[:clients])
    with trying("adapt"):
        module = setup.build().to(real.device)
    kernel = choose(module, real.device, lanes, replay=False)
    head = head_kernel(module, real.device, lanes, False, memory=math.inf)
    with trying("client_state"):
        buffers = {
            name: row
            for name, row in prepared.store.template.items()
            if name.startswith(BUFFERS)
        }
        private = method.client_state(setup) | buffers
    resources = Resources(
        setup,
        samples,
        kernel,
        real.buffers,
        real.device,
        lambda: None,
        Stopwatch(),
        real.scores,
        head=head,
    )
    here = Placement(np.zeros(len(counts), np.int64), 1)
    return replace(
        prepared,
        setup=setup,
        counts=counts,
        resources=resources,
        store=ClientStore([0], private),
        newcomers=ClientStore(new, private),
        placement=here,
    )


def impatient() -> Callable[[], None]:
    """A heartbeat that raises Enough when it is called more than BEATS times."""
    beats = iter(range(BEATS))

    def beat() -> None:
        if next(beats, None) is None:
            raise Enough

    return beat


def sent(
    small: Prepared,
    server: State,
    round: int,
    ids: np.ndarray = CLIENT,
    hook: str = "send",
) -> Inbox:
    """What the server sends to the client by its ``hook``, as it arrives there. Raises
    Failure.
    """
    with trying(hook):
        message = checked(
            hook, getattr(small.method, hook)(server, small.audience(ids, round))
        )
        return exchange.send(
            OneProcess(), small.placement, ids, message, small.resources.device
        )[0]


def client_side(small: Prepared, inbox: Inbox) -> tuple[Message, State]:
    """What the client sends after training, and as it arrives on the server; it also
    observes.

    Raises Failure.
    """
    participants, observers = fleet(small, 1), fleet(small, 1)
    with trying("update"):
        message = checked("update", small.method.update(participants, inbox))
        small.store.put([0], participants.state)
        record.numbers(participants, message, record.finite(participants, message))
        uplink = exchange.gather(
            OneProcess(), small.placement, CLIENT, message, [exchange.header(message)]
        )
    with trying("observe"):
        small.method.observe(observers, inbox)
    with trying("update"):
        check_score(small, {*participants.scores, *observers.scores})
    return message, uplink or {}


def fleet(small: Prepared, round: int) -> Fleet:
    """The fleet of the one client, in a round that is scored."""
    return brief(small.fleet(CLIENT, round, scored=True))


def brief(full: Fleet) -> Fleet:
    """The same fleet, before it has done anything, as one that trains briefly."""
    return BriefFleet(
        full.ids, full.state, full.counts, full.round, True, full.loss, full.resources
    )


def checked(sender: str, message: Any) -> Message:
    """The message of one client that the hook ``sender`` returned. Raises TypeError if
    it cannot travel.
    """
    if not isinstance(message, Mapping):
        raise TypeError(
            f"it returns a {type(message).__name__}; expected a dictionary of tensors by name"
        )
    try:
        entries = fields(message)
    except (
        ValueError
    ) as error:  # which is excused on the server, but not in what it sends
        raise TypeError(f"it returns what cannot travel: {error}") from None
    for name, field in entries.items():
        down = sender != "update"
        if isinstance(field, Mean) and down:
            raise TypeError(
                f"it returns '{name}' as a Mean, which is what clients send"
            )
        shared = field.shared and down
        if not shared and (field.shared or len(field.tensor) != 1):
            raise TypeError(
                f"it returns '{name}' of shape {list(field.tensor.shape)}; "
                "expected a row for each client, here [1, "
                f"width]{', or one for all, [width]' if down else ''}"
            )
    return message


def check_score(small: Prepared, columns: set[str]) -> None:
    """Raise UserError if ``evaluation.score`` is none of the ``columns`` that a round
    records.
    """
    wanted, method = small.config.evaluation.score, small.method
    if wanted not in {
        "method",
        method.primary,
        *columns,
    }:  # the method's own may be recorded at the end only
        raise UserError(
            f"evaluation.score = '{wanted}': {method.name} records {', '.join(sorted(columns))}; "
            f"'method' takes its own, {method.primary}"
        )
