"""The communicator of MPI's ranks and its information from MPI. ``tests/mpi`` tests
exchanges between real ranks.
"""

from types import SimpleNamespace

import pytest

from hpcfl.communication import mpi
from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.mpi import World
from hpcfl.files import heartbeat


def test_ranks_of_a_job_inherit_nothing_from_a_process_on_its_own():
    assert not issubclass(World, OneProcess)


@pytest.mark.parametrize(
    ("kinds", "takes"),
    [(None, False), ("mpi,system", False), ("mpi,system,cuda:device", True)],
)
def test_gpu_arrays_are_used_if_mpi_supports_them(kinds, takes):
    host = SimpleNamespace(rank=0, size=2)
    info = SimpleNamespace(Get={"mpi_memory_alloc_kinds": kinds}.get)
    world = SimpleNamespace(
        rank=0, size=2, Split_type=lambda kind: host, Get_info=lambda: info
    )
    mpi4py = SimpleNamespace(COMM_WORLD=world, COMM_TYPE_SHARED=None)
    with heartbeat.use_listener(lambda: None):  # from here on a World receives messages
        assert World(mpi4py).takes_gpu is takes


@pytest.mark.parametrize(
    ("kinds", "reaches"),
    [
        ("system", False),
        ("system,cuda", True),
        ("mpi,cuda:device", True),
        ("system, cuda:host", False),
        ("cuda:managed:device", True),
        ("cudax", False),
        ("", False),
    ],
)
def test_mpi_reaches_gpus_where_it_takes_their_own_memory(kinds, reaches):
    assert mpi.reaches_gpus(kinds) == reaches
