"""The contract of an overlay.

A run has an ordered list of overlays, the innermost first. Each sees the final message
of the method and of the overlays before it. ``simulation/hooks.py`` applies
them:

    send:      method.send, then each overlay's ``send``, in order
    receive:   each overlay's ``receive``, in reverse order, then the method's hook
    upload:    method.update, then each overlay's ``upload``, in order
    aggregate: each overlay's ``aggregate``, in reverse order, then method.aggregate

So the last overlay sees exactly the message that travels. ``OwnOverlay`` is the base of
those that an experiment names in ``[[overlay]]``. These come after the built-in ones
of this folder, and the changes of updates (``updates/overlay.py``) come last.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.clients.setup import Setup
from hpcfl.communication.message import Inbox, Message
from hpcfl.experiment.sections import OverlaySection
from hpcfl.methods._participants import Audience, Cohort

State = dict[str, Tensor]


class Overlay:
    """An overlay that changes nothing; a subclass overrides the steps that it changes.

    Attributes:
        varying: as for a method, of the names in ``server_state``.
    """

    varying: ClassVar[tuple[str, ...]] = ()

    def server_state(self, setup: Setup) -> State:
        """Return the overlay's part of the server's state before round 1."""
        return {}

    def client_state(self, setup: Setup) -> State:
        """Return the overlay's part of ONE client's private state before its first
        round.
        """
        return {}

    def send(self, server: State, audience: Audience, message: Message) -> Message:
        """Return the message to the audience, made of the ``message`` inside.

        It runs on rank 0 for clients and for newcomers, and must not change ``server``.
        """
        return message

    def receive(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Return the inbox for the steps inside; may assign names in ``fleet.state``.

        It runs before every hook that gets an inbox.
        """
        return inbox

    def upload(self, fleet: Fleet, inbox: Inbox, message: Message) -> Message:
        """Return the message to the server, made of the ``message`` inside.

        It runs after ``update``; may assign names in ``fleet.state``. ``inbox`` is the
        one that ``receive`` was given.
        """
        return message

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> State | None:
        """Return the uplink for the steps inside, or None to skip them in this round;
        may assign names in ``server``.

        It runs on rank 0.
        """
        return uplink

    def acts_on_empty_cohorts(self) -> bool:
        """Return whether ``aggregate`` runs in a round without uploads as well, with
        zeros in place of means, and the method's after it.
        """
        return False

    def show_cohort(self, cohort: Cohort) -> Cohort:
        """Return the cohort as the method's ``aggregate`` may see it."""
        return cohort

    def notes(self) -> list[str]:
        """Return lines for the user to read before the first round."""
        return []

    def measure(self, server: State, round: int) -> dict[str, float]:
        """Return numbers of a round to record by name, after its ``aggregate``."""
        return {}

    def list_decisions(self) -> dict[str, str]:
        """Return decisions that change the run's numbers, by subject. A resumed run must
        make the same ones.
        """
        return {}

    def describe(
        self,
        rounds: int,
        cohort: Callable[[int], np.ndarray],
        uploads: Mapping[str, int],
    ) -> list[str]:
        """Return lines for ``hpcfl check``.

        Args:
            rounds: The number of rounds of the run.
            cohort: Returns the ids of the clients that train in a round.
            uploads: The width of each entry of a client's message.
        """
        return []

    def count_server_bytes(self, clients: int, uploads: Mapping[str, int]) -> int:
        """Return the bytes of copies of rows that ``aggregate`` makes on rank 0, for
        the memory table of ``hpcfl check``.

        Args:
            clients: The number of clients in a round.
            uploads: The width of each entry of a client's message.
        """
        return 0


class OwnOverlay(OverlaySection, Overlay):
    """An overlay of a user, named ``my_file:Class`` in a table of ``[[overlay]]``.

    Its fields are further keys of the table. An overlay keeps nothing in itself:
    ``server`` and ``fleet.state`` hold what changes.
    """
