"""A process that calls ``hpcfl.run`` repeatedly, such as a notebook, retains nothing of
earlier runs.
"""

import gc
import os
import threading
import tracemalloc
from pathlib import Path

import pytest
import torch

import hpcfl
from hpcfl.communication.communicator import Guest
from hpcfl.simulation import signals

# 20 clients with 75,010 parameters: a run that stays in memory costs at least the rows
# of all clients, 5.7 MiB.
TABLE = {
    "name": "again",
    "rounds": 1,
    "partition": {"scheme": "iid", "clients": 20},
    "model": {"name": "mlp", "hidden": [1000]},
    "method": {"name": "fedphp"},
    "training": {"batch_size": 200},
}
ROWS = 20 * 75_010 * 4  # bytes
# number of runs until all imports and caches exist, and number of measured runs after
# them
BEFORE, AFTER = 2, 2


@pytest.fixture
def allocations():
    """Count Python's allocations."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def remembered():
    """Return the bytes of arrays, of other Python objects, and of the tensors that this
    process can reach.

    The process memory that the system reports varies by more than a run's size, because
    the allocator returns memory irregularly. Tensors on torch's meta device have a
    shape and no memory. ``torch.export``, which other tests of this process may have
    called, retains some of them, and their addresses cannot be read.
    """
    everything = gc.get_objects()
    storages = [
        one.untyped_storage() for one in everything if isinstance(one, torch.Tensor)
    ]
    sizes = {
        storage.data_ptr(): storage.nbytes()
        for storage in storages
        if storage.device.type != "meta"
    }
    arrays, _ = tracemalloc.get_traced_memory()
    return arrays + sum(sizes.values())


def find_resources():
    """Return the numbers of threads, open files and child processes of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return (
        set(threading.enumerate()),
        len(os.listdir("/proc/self/fd")),
        children,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("allocations")
def test_a_process_does_not_grow_over_runs(tmp_path):
    for number in range(BEFORE):
        hpcfl.run(TABLE, out=tmp_path / f"before-{number}", progress=False)
    gc.collect()
    memory, things = remembered(), find_resources()
    for number in range(AFTER):
        hpcfl.run(TABLE, out=tmp_path / f"after-{number}", progress=False)
    gc.collect()
    assert find_resources() == things
    # half of the bytes that AFTER runs would add if each retained the rows of its
    # clients
    assert remembered() - memory < AFTER * ROWS / 2


@pytest.mark.slow
def test_a_second_interrupt_ends_a_run_and_not_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "ECHO", -1.0)
    table = {**TABLE, "model": {"name": "mlp", "hidden": [8]}}

    def stop(name, round, values):
        for _ in range(2):
            os.kill(os.getpid(), signals.signal.SIGINT)

    things = find_resources()
    with pytest.raises(KeyboardInterrupt):
        hpcfl.run(table, out=tmp_path / "run", on_round=stop, progress=False)
    gc.collect()
    assert find_resources() == things
    assert hpcfl.run(table, out=tmp_path / "run", progress=False).summary.finished


def test_a_guests_abort_raises_an_interrupt():
    with pytest.raises(KeyboardInterrupt):
        Guest().abort(1)
