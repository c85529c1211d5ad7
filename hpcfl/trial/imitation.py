"""A round of the method on an imitated federation: the real model, loss, kernel and messages, but
one client only.

It has two samples, and its message stands for those of all clients where the server aggregates.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from hpcfl.fleet.kernels import choose
from hpcfl.fleet.stopwatch import Stopwatch
from hpcfl.methods.base import State
from hpcfl.preparation.prepare import Prepared
from hpcfl.rounds import record
from hpcfl.storage.clients import ClientStore

SAMPLES = 2
# in the models of all imitated clients; where the experiment has more, there are fewer clients
FLOATS = 1 << 24
FEWEST = 2  # clients
CLIENT = np.array([0])
SERVER_SIDE = ("server_state", "send", "aggregate")
BEATS = 10  # steps of a computation of the server


class Enough(Exception):
    """The server computes for long: what it does works so far."""


# On the server's side; the messages of all clients are equal, which may be too odd for it. torch documents
# LinAlgError in this place, but its annotations do not count it as public.
EXCUSED = (ValueError, ArithmeticError, AssertionError, Enough,
           torch.linalg.LinAlgError)  # type: ignore[attr-defined]


class Failure(Exception):
    """A hook of the method, by name, failed because of the ``__cause__``."""


class Brief(Fleet):
    """A fleet that trains for one epoch at most."""

    def _epochs(self, epochs: int | None) -> int:
        return min(super()._epochs(epochs), 1)


def play(prepared: Prepared, lanes: int) -> None:
    """A round and the final scoring, with at most so many lanes. Raises Failure."""
    small = imitate(prepared, lanes)
    last = prepared.config.rounds + 1
    everyone = replace(small.cohort(np.arange(small.setup.clients), 1), beat=impatient())
    try:
        with hook("server_state"):
            server = small.method.server_state(small.setup)
        message, uplink = client_side(small, sent(small, server, 1))
        with hook("aggregate"):
            uploads = {name: arrived if isinstance(message[name], Mean) else
                       arrived.repeat(small.setup.clients, 1) for name, arrived in uplink.items()}
            small.method.aggregate(server, everyone, uploads)
        inbox = sent(small, server, last)
    except Failure as failure:
        few = small.setup.clients < prepared.setup.clients
        if str(failure) in SERVER_SIDE and (few or isinstance(failure.__cause__, EXCUSED)):
            return
        raise
    with hook("finish"):
        small.method.finish(fleet(small, last), inbox)


def imitate(prepared: Prepared, lanes: int) -> Prepared:
    """The experiment with two samples, a kernel, a clock and a store of its own."""
    real, method = prepared.resources, prepared.method
    clients = min(prepared.setup.clients, max(FEWEST, FLOATS // prepared.setup.layout.width))
    samples = real.samples.dealt({0: np.arange(min(SAMPLES, len(real.samples.y)))})
    setup = replace(prepared.setup, counts=samples.counts(0).repeat(clients, 1))
    with hook("adapt"):
        kernel = choose(setup.build().to(real.device), real.device, lanes)
    with hook("client_state"):
        buffers = {name: row for name, row in prepared.store.template.items() if name.startswith(BUFFERS)}
        store = ClientStore([0], method.client_state(setup) | buffers)
    resources = Resources(setup, samples, kernel, real.buffers, real.device, lambda: None, Stopwatch(),
                        real.scores)
    here = Placement(np.zeros(clients, np.int64), 1)
    return replace(prepared, setup=setup, resources=resources, store=store, placement=here)


def impatient() -> Callable[[], None]:
    """A heartbeat that raises Enough after a few steps."""
    beats = iter(range(BEATS))

    def beat() -> None:
        if next(beats, None) is None:
            raise Enough

    return beat


def sent(small: Prepared, server: State, round: int) -> Inbox:
    """What the server sends to the client, as it arrives."""
    with hook("send"):
        message = checked("send", small.method.send(server, small.audience(CLIENT, round)))
        return exchange.send(OneProcess(), small.placement, CLIENT, message, small.resources.device)[0]


def client_side(small: Prepared, inbox: Inbox) -> tuple[Message, State]:
    """What the client sends after it trained and was scored, and how it arrives."""
    player, onlooker = fleet(small, 1), fleet(small, 1)
    with hook("update"):
        message = checked("update", small.method.update(player, inbox))
        record.numbers(player, message, record.finite(player, message))
        small.store.put([0], player.state)
        uplink = exchange.gather(OneProcess(), small.placement, CLIENT, message, [exchange.header(message)])
    with hook("observe"):
        small.method.observe(onlooker, inbox)
    with hook("update"):
        check_score(small, {*player.scores, *onlooker.scores})
    return message, uplink or {}


def fleet(small: Prepared, round: int) -> Fleet:
    """The client, in a round that is scored."""
    known = small.fleet(CLIENT, round, scored=True)
    return Brief(known.ids, known.state, known.counts, round, True, known.loss, known.resources)


def checked(sender: str, message: Any) -> Message:
    """The message, if it is one that can travel to or from one client."""
    if not isinstance(message, Mapping):
        raise TypeError(f"it returns a {type(message).__name__}; expected a dictionary of tensors by name")
    for name, field in fields(message).items():
        if isinstance(field, Mean) and sender == "send":
            raise TypeError(f"it returns '{name}' as a Mean, which is what clients send")
        shared = field.shared and sender == "send"
        if not shared and (field.shared or len(field.tensor) != 1):
            raise TypeError(f"it returns '{name}' of shape {list(field.tensor.shape)}; "
                            "expected a row for each client, here [1, "
                            f"width]{', or one for all, [width]' if sender == 'send' else ''}")
    return message


def check_score(small: Prepared, scores: set[str]) -> None:
    """Raises UserError for an ``evaluation.score`` that no round records."""
    wanted, method = small.config.evaluation.score, small.method
    if wanted not in {"method", method.primary, *scores}:  # the method's own score may come at the end only
        raise UserError(f"evaluation.score = '{wanted}': {method.name} records {', '.join(sorted(scores))}; "
                        f"'method' takes its own, {method.primary}")


@contextmanager
def hook(name: str) -> Iterator[None]:
    """What fails inside fails in this hook of the method."""
    try:
        yield
    except Exception as error:
        raise Failure(name) from error
