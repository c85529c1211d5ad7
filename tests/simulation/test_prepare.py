"""What a user is told of an experiment as a whole, before round 1."""

import tiny

from hpcfl.communication.communicator import Process
from hpcfl.experiment import config
from hpcfl.simulation.prepare import prepare


def test_more_ranks_than_clients_are_noted():
    """Each worker has one client; one more than there are clients has nothing to do."""
    experiment = config.parse(tiny.table("fedavg"))
    clients = experiment.partition.clients
    assert prepare(experiment, Process(0, clients + 1)).notes == []
    (note,) = prepare(experiment, Process(0, clients + 2)).notes
    assert (
        note
        == f"1 of {clients + 1} workers have no client; -n {clients + 1} is as fast"
    )
