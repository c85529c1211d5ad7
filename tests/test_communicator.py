"""What the communicator learns from MPI; exchanges between real ranks are tested in ``tests/mpi``."""

from types import SimpleNamespace

import pytest

from hpcfl.communicator import World


@pytest.mark.parametrize(("kinds", "takes"), [(None, False), ("mpi,system", False), ("mpi,system,cuda:device", True)])
def test_arrays_may_lie_in_a_gpu_where_mpi_says_so(kinds, takes):
    host = SimpleNamespace(rank=0, size=2)
    info = SimpleNamespace(Get={"mpi_memory_alloc_kinds": kinds}.get)
    world = SimpleNamespace(rank=0, size=2, Split_type=lambda kind: host, Get_info=lambda: info)
    assert World(SimpleNamespace(COMM_WORLD=world, COMM_TYPE_SHARED=None)).takes_gpu is takes
