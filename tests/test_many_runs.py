"""A process that calls ``hpcfl.run`` again and again, as a notebook's does, keeps nothing
of the runs before.
"""

import gc
import os
import threading
from pathlib import Path

import pytest

import hpcfl
from hpcfl.communication.communicator import Guest
from hpcfl.simulation import signals

# Of 20 clients with 75,010 parameters: what a run that stays in memory would cost is at
# least the rows of all clients, 5.7 MiB.
TABLE = {
    "name": "again",
    "rounds": 1,
    "partition": {"scheme": "iid", "clients": 20},
    "model": {"name": "mlp", "hidden": [1000]},
    "method": {"name": "fedphp"},
    "training": {"batch_size": 200},
}
ROWS = 20 * 75_010 * 4  # bytes
BEFORE, AFTER = (
    2,
    4,
)  # runs until what is imported and kept once is there, and from then

pytestmark = pytest.mark.usefixtures("no_figures")


def resident():
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def held():
    """Threads, open files and child processes of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return (
        set(threading.enumerate()),
        len(os.listdir("/proc/self/fd")),
        children,
    )


@pytest.mark.slow
def test_a_process_does_not_grow_over_runs(tmp_path):
    for number in range(BEFORE):
        hpcfl.run(TABLE, out=tmp_path / f"before-{number}", progress=False)
    gc.collect()
    memory, things = resident(), held()
    for number in range(AFTER):
        hpcfl.run(TABLE, out=tmp_path / f"after-{number}", progress=False)
    gc.collect()
    assert held() == things
    # half of what AFTER runs would add that each leave the rows of their clients, 17 MiB;
    # runs that leave nothing go up and down by 12
    assert resident() - memory < AFTER * ROWS / 2


@pytest.mark.slow
def test_a_second_interrupt_ends_a_run_and_not_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "ECHO", -1.0)
    table = {**TABLE, "model": {"name": "mlp", "hidden": [8]}}

    def stop(name, round, values):
        for _ in range(2):
            os.kill(os.getpid(), signals.signal.SIGINT)

    things = held()
    with pytest.raises(KeyboardInterrupt):
        hpcfl.run(table, out=tmp_path / "run", on_round=stop, progress=False)
    gc.collect()
    assert held() == things
    assert hpcfl.run(table, out=tmp_path / "run", progress=False).summary.finished


def test_a_guest_never_ends_its_process():
    with pytest.raises(KeyboardInterrupt):
        Guest().abort(1)
