"""What every communicator must have, and what it learns from MPI; exchanges between
real ranks are tested in ``tests/mpi``.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from in_threads import on_ranks

from hpcfl.communication import mpi
from hpcfl.communication.communicator import (
    Communicator,
    OneProcess,
    agreed,
    require_equal,
)
from hpcfl.communication.mpi import World
from hpcfl.errors import RunFailure, UserError
from hpcfl.files import heartbeat

EXCHANGES = [
    "collective_block",
    "bcast",
    "gather",
    "allgather",
    "allreduce_max",
    "bcast_row",
    "scatter_rows",
    "gather_rows",
    "allreduce_max_array",
    "reduce_sum",
]
NEEDED = [*EXCHANGES, "watch", "finalize", "abort"]


@pytest.mark.parametrize("forgotten", NEEDED)
def test_a_communicator_that_lacks_an_exchange_cannot_be_constructed(forgotten):
    own = {name: getattr(World, name) for name in NEEDED if name != forgotten}
    with pytest.raises(TypeError, match=f"abstract.*{forgotten}"):
        type("Forgetful", (Communicator,), own)(
            rank=0, size=2, local_rank=0, local_size=2
        )


def test_a_communicator_that_does_not_say_where_its_ranks_are_cannot_be_constructed():
    with pytest.raises(TypeError, match="local_rank"):
        type(
            "Forgetful",
            (Communicator,),
            {name: getattr(World, name) for name in NEEDED},
        )(rank=0, size=2)


def test_ranks_of_a_job_inherit_nothing_from_a_process_on_its_own():
    assert not issubclass(World, OneProcess)


@pytest.mark.parametrize(
    ("kinds", "takes"),
    [(None, False), ("mpi,system", False), ("mpi,system,cuda:device", True)],
)
def test_arrays_may_lie_in_a_gpu_where_mpi_says_so(kinds, takes):
    host = SimpleNamespace(rank=0, size=2)
    info = SimpleNamespace(Get={"mpi_memory_alloc_kinds": kinds}.get)
    world = SimpleNamespace(
        rank=0, size=2, Split_type=lambda kind: host, Get_info=lambda: info
    )
    mpi4py = SimpleNamespace(COMM_WORLD=world, COMM_TYPE_SHARED=None)
    with heartbeat.use_listener(lambda: None):  # a World listens from now on
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


def test_rows_that_a_gpu_puts_in_order_are_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    rows = SimpleNamespace(is_cuda=True, device="its device")
    assert mpi._settled(rows) is rows and waited == ["its device"]
    mpi._settled(np.ones(2))
    mpi._settled(torch.ones(2))
    assert len(waited) == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, 1, 1], None),
        ([1, 1, 2], "seed: 1 on rank 0, 2 on rank 2; do so"),
        ([1, None, 1], "seed: 1 on rank 0, null on rank 1"),
        ([1, "1", 1], 'seed: 1 on rank 0, "1" on rank 1'),
    ],
)
def test_a_setting_that_differs_is_named_on_all_ranks(values, words):
    said = []

    def compare(communicator):
        value = values[communicator.rank]
        settings = {"seed": value, "partition.seed": value, "lr": 0.1}
        try:
            require_equal(communicator, settings, "do so")
        except UserError as error:
            said.append(str(error))

    on_ranks(3, compare)
    assert len(set(said)) == (words is not None)
    assert words is None or (len(said) == 3 and said[0].startswith(words))


def test_a_key_that_a_rank_lacks_is_named():
    def compare(communicator):
        settings = {"seed": 1} if communicator.rank else {}
        require_equal(communicator, settings, "do so")

    with pytest.raises(UserError, match="seed: no value on rank 0, 1 on rank 1"):
        on_ranks(2, compare)


@pytest.mark.parametrize(
    "cause", [MemoryError("8 GiB"), RuntimeError("can't allocate memory")]
)
def test_a_lack_of_memory_is_no_bad_input(cause):
    def read(communicator):
        with agreed(communicator):
            if communicator.rank:
                try:
                    raise cause
                except Exception as error:
                    raise UserError("own.csv: is damaged") from error

    with pytest.raises(RunFailure, match=str(cause)):
        on_ranks(2, read)


def test_other_bad_input_stays_so():
    def read(communicator):
        with agreed(communicator):
            raise UserError("own.csv: is damaged") from FileNotFoundError()

    with pytest.raises(UserError, match="damaged"):
        on_ranks(2, read)
