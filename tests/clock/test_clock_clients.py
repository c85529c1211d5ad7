"""Numbers of an experiment's clients from which a calendar starts."""

import numpy as np
import tiny
from in_threads import on_ranks

from hpcfl.clock.clients import describe_clients, share_workload
from hpcfl.communication.communicator import OneProcess
from hpcfl.simulation.prepare import prepare

COUNTS = tiny.COUNTS[:2]
SYNCHRONOUS = {"mode": "synchronous", "sample_ms": 1000.0}


def prepare_on(communicator):
    return prepare(tiny.parse("ditto", COUNTS, time=SYNCHRONOUS), communicator)


def test_a_rank_without_clients_receives_the_workload():
    loads = {}

    def share(communicator):
        prepared = prepare_on(communicator)
        loads[communicator.rank] = share_workload(prepared, communicator)

    on_ranks(4, share)
    assert len(loads) == 4 and len(set(map(repr, loads.values()))) == 1


def test_a_client_works_on_its_own_samples():
    prepared = prepare_on(OneProcess())
    clients = describe_clients(prepared, share_workload(prepared, OneProcess()))
    samples = np.array(clients.draws.samples)
    assert samples.tolist() == [11, 11]
    assert clients.draws.clients == 2 and clients.time.mode == "synchronous"
