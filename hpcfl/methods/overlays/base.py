"""Base class of overlays, which change messages.

A run has an ordered list of overlays, the innermost first. Each overlay receives the
message of the method after the changes of the overlays before it.
``simulation/hooks.py`` calls them in this order:

    send:      method.send, then each overlay's ``send``, in order
    receive:   each overlay's ``receive``, in reverse order, then the method's hook
    upload:    method.update, then each overlay's ``upload``, in order
    aggregate: each overlay's ``aggregate``, in reverse order, then method.aggregate

The last overlay thus receives exactly the message that is sent. ``OwnOverlay`` is the
base class of a user's overlays in ``[[overlay]]``. These follow the built-in overlays of
this folder; the overlays of ``updates/`` are the last ones.
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
    """An overlay without any change. Subclasses override the steps that they change.

    Attributes:
        varying: Names in ``server_state`` that ``aggregate`` may add or reshape.
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
        """Return the message to the clients, computed from the method's ``message``.

        Runs on rank 0, for clients and for newcomers; must not change ``server``.
        """
        return message

    def receive(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Return the inbox for the overlays before this one and for the method; may
        assign names in ``fleet.state``.

        Runs before every hook that takes an inbox.
        """
        return inbox

    def upload(self, fleet: Fleet, inbox: Inbox, message: Message) -> Message:
        """Return the message to the server, computed from the method's ``message``.

        Runs after ``update``; may assign names in ``fleet.state``. ``inbox`` is the
        argument of ``receive``.
        """
        return message

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> State | None:
        """Return the uplink for the overlays before this one and for the method, or
        None to skip their steps in this round; may assign names in ``server``.

        Runs on rank 0.
        """
        return uplink

    def acts_on_empty_cohorts(self) -> bool:
        """Return whether ``aggregate`` of this overlay and of the method also runs in a
        round without uploads, with zeros as means.
        """
        return False

    def show_cohort(self, cohort: Cohort) -> Cohort:
        """Return the cohort that the method's ``aggregate`` receives."""
        return cohort

    def notes(self) -> list[str]:
        """Return notes to print before round 1."""
        return []

    def measure(self, server: State, round: int) -> dict[str, float]:
        """Return numbers of a round by names such as ``recorded/norm``, computed after
        its ``aggregate``.
        """
        return {}

    def list_decisions(self) -> dict[str, str]:
        """Return automatic choices that affect results, by subject. A resumed run must
        make the same choices.
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
            cohort: Function that returns the ids of the clients that train in a round.
            uploads: The width of each entry of a client's message.
        """
        return []

    def count_server_bytes(self, clients: int, uploads: Mapping[str, int]) -> int:
        """Return the bytes of the copies that ``aggregate`` makes on rank 0, for the
        memory table of ``hpcfl check``.

        Args:
            clients: The number of clients in a round.
            uploads: The width of each entry of a client's message.
        """
        return 0


class OwnOverlay(OverlaySection, Overlay):
    """Base class of a user's overlay, ``my_file:Class`` in a table of ``[[overlay]]``.

    Its fields are further keys of the table. An overlay has no attributes that change:
    its state is in ``server`` and ``fleet.state``.
    """
