"""Messages and results between the rounds of an asynchronous server."""

from types import SimpleNamespace

import torch

from hpcfl.clock.asynchronous.in_flight import InFlight
from hpcfl.storage.clients import ClientStore


class Calendar:
    """A calendar in which job ``v`` starts from version ``v`` and arrives in round ``v
    + 2``.
    """

    def list_started(self, version, first, last):
        return [(version + 2, SimpleNamespace(version=version, client=version))]


def make_in_flight(state):
    store = ClientStore(range(3), {"own": torch.zeros(2)})
    prepared = SimpleNamespace(store=store, resources=SimpleNamespace(device="cpu"))
    return InFlight(Calendar(), prepared, 9, state)


def test_messages_stay_while_a_client_trains_on_them_and_are_resumed():
    flight = make_in_flight({})
    for version in range(3):
        flight.keep_message(version, {"model": torch.full((2,), float(version))})
    flight.forget_messages([0, 2])
    state = flight.get_state()
    assert set(state) == {"0.model", "2.model"}
    resumed = make_in_flight(state)
    assert resumed.sent.keys() == {0, 2}
    assert torch.equal(resumed.sent[2]["model"], torch.tensor([2.0, 2.0]))


def test_clients_that_have_started_train_once():
    flight = make_in_flight({})

    def take(number, version):
        step = SimpleNamespace(number=number, jobs=[SimpleNamespace(version=version)])
        return [job.client for _, job in flight.take_untrained(step)]

    assert take(2, 1) == [0, 1]
    assert take(3, 1) == []
    assert take(4, 2) == [2, 3]
