"""MPI: the communicator of several ranks.

Every exchange begins when all ranks have reached it. Waiting ranks poll with a short
sleep: a Python signal handler cannot run inside a blocking MPI call, and a sleeping
rank frees its core. The exchange itself is a blocking call at full speed.
"""

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from hpcfl.communication.communicator import (
    Array,
    Communicator,
    Empty,
    OneProcess,
    flush,
)
from hpcfl.communication.watchdog import Watchdog
from hpcfl.files import heartbeat, output

SHORTEST_PAUSE = 5e-5  # seconds between two polls of the barrier
# Pairs of a fraction of the time waited so far and a maximum in seconds. A pause is the
# longest of these and SHORTEST_PAUSE.
PAUSES = ((0.02, 5e-4), (0.005, 2e-2))
CHECK_EVERY = 0.02  # seconds between two checks for silent ranks
# Maximum number of bytes in one call. Before version 4 MPI counts in 32 bits, also for
# the sum over all ranks.
BLOCK_BYTES = 1 << 28
# Number of bytes of sums that are added at once, so that they stay in a core's cache.
PIECE_BYTES = 1 << 19
# Rows of at least this size are sent one at a time, without a copy. Smaller rows are
# sent in blocks of clients, copied into the order of ranks.
WIDE_BYTES = 1 << 16


class World(Communicator):
    """The ranks of an MPI job."""

    def __init__(self, mpi: Any):
        """Begin with the ranks of ``MPI_COMM_WORLD``.

        Args:
            mpi: module ``mpi4py.MPI``.
        """
        self._mpi = mpi
        self._world = mpi.COMM_WORLD
        host = self._world.Split_type(mpi.COMM_TYPE_SHARED)
        super().__init__(self._world.rank, self._world.size, host.rank, host.size)
        # MPI reports memory kinds since version 4.1.
        memory_kinds = self._world.Get_info().Get("mpi_memory_alloc_kinds") or ""
        self.takes_gpu = reaches_gpus(memory_kinds)
        self._open_blocks = 0  # the depth of nested ``collective_block``
        self._watchdog = Watchdog(mpi, self._give_up)
        heartbeat.set_listener(self._watchdog.beat)

    def watch(self, seconds: float) -> None:
        self._watchdog.allow(seconds)

    def _give_up(self, silent: int | None, seconds: float) -> NoReturn:
        """Print the silent rank and end the job.

        Args:
            silent: silent rank, or None if it is unknown.
            seconds: number of seconds without a heartbeat.
        """
        lost = "a rank in an exchange with this one"
        if silent is not None:
            lost = self.ranks[silent]
        output.complain(
            f"{lost} has been silent for {seconds:g} s (runtime.hang_after); "
            "ending the job. The same command resumes it"
        )
        self.abort(1)

    def _wait_for_all(self) -> None:
        """Poll until every rank has reached this call; end the job if a rank stays
        silent.
        """
        begun = checked = time.monotonic()
        barrier = self._world.Ibarrier()
        while not barrier.Test():
            now = time.monotonic()
            if now - checked > CHECK_EVERY:
                checked = now
                self._watchdog.check()
            waited = now - begun
            pauses = [min(share * waited, longest) for share, longest in PAUSES]
            time.sleep(max(SHORTEST_PAUSE, *pauses))
        self._watchdog.record_all_alive()

    @contextmanager
    def collective_block(self) -> Iterator[None]:
        if not self._open_blocks:
            self._wait_for_all()
        self._open_blocks += 1
        try:
            yield
        finally:
            self._open_blocks -= 1

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Begin a block of blocking calls after every rank has reached it."""
        with self.collective_block(), self._watchdog.blocking():
            yield

    def bcast(self, value: Any) -> Any:
        text = json.dumps(value) if self.is_server else None
        with self._exchange():
            text = self._world.bcast(text, root=0)
        return json.loads(text)

    def gather(self, value: Any) -> list[Any] | None:
        with self._exchange():
            texts = self._world.gather(json.dumps(value), root=0)
        return None if texts is None else [json.loads(text) for text in texts]

    def allgather(self, value: Any) -> list[Any]:
        with self._exchange():
            texts = self._world.allgather(json.dumps(value))
        return [json.loads(text) for text in texts]

    def bcast_row(
        self,
        row: Array | None,
        width: int,
        dtype: str,
        empty: Empty,
    ) -> Array:
        row = empty((width,), dtype) if row is None else row
        step = max(1, BLOCK_BYTES // row.itemsize)
        with self._exchange():
            for start in range(0, width, step):
                block = row[start : start + step]
                self._world.Bcast([block, self._mpi.BYTE], root=0)
        self.bytes_sent += row.nbytes * (self.size - 1)
        return row

    def scatter_rows(
        self,
        rows: Array | None,
        owner: Array,
        width: int,
        dtype: str,
        empty: Empty,
    ) -> Array:
        mine = empty((int((owner == self.rank).sum()), width), dtype)
        with self._exchange():
            self._move(rows, mine, owner, gathers=False)
        self.bytes_sent += len(owner) * width * mine.itemsize
        return mine

    def gather_rows(
        self, rows: Array, owner: Array, empty: Empty = np.empty
    ) -> Array | None:
        width, everyones = rows.shape[1], None
        if self.is_server:
            dtype = str(rows.dtype).removeprefix("torch.")
            everyones = empty((len(owner), width), dtype)
        with self._exchange():
            self._move(everyones, rows, owner, gathers=True)
        self.bytes_received += len(owner) * width * rows.itemsize
        return everyones

    def allreduce_max_array(self, values: np.ndarray) -> np.ndarray:
        with self._exchange():
            self._world.Allreduce(self._mpi.IN_PLACE, values, op=self._mpi.MAX)
        self.bytes_received += values.nbytes * (self.size - 1)
        self.bytes_sent += values.nbytes * (self.size - 1)
        return values

    def reduce_sum(self, values: np.ndarray) -> np.ndarray | None:
        flat = values.reshape(-1)
        step = PIECE_BYTES // flat.itemsize
        with self._exchange():
            for piece in np.split(flat, range(step, len(flat), step)):
                send, receive = piece, None
                if self.is_server:
                    send, receive = self._mpi.IN_PLACE, piece
                self._world.Reduce(send, receive, op=self._mpi.SUM, root=0)
        self.bytes_received += values.nbytes * (self.size - 1)
        return values if self.is_server else None

    def _move(
        self,
        all_rows: Array | None,
        mine: Array,
        owner: Array,
        gathers: bool,
    ) -> None:
        """Exchange the rows of all ranks.

        Args:
            all_rows: rows on rank 0, ``[n, width]``; None on other ranks.
            mine: rows of this rank, ``[k, width]``.
            owner: rank of each row, [n].
            gathers: whether ``mine`` is sent to rank 0; otherwise it is received from
                rank 0.
        """
        row_bytes = mine.shape[1] * mine.itemsize
        if row_bytes >= WIDE_BYTES:
            self._move_row_by_row(all_rows, mine, owner, gathers)
            return
        step, done = max(1, BLOCK_BYTES // max(1, row_bytes)), 0
        for start in range(0, len(owner), step):
            block = slice(start, start + step)
            count = int((owner[block] == self.rank).sum())
            rows = None if all_rows is None else all_rows[block]
            self._move_block(rows, mine[done : done + count], owner[block], gathers)
            done += count

    def _move_block(
        self,
        all_rows: Array | None,
        mine: Array,
        owner: Array,
        gathers: bool,
    ) -> None:
        """Exchange rows through a copy in the order of ranks.

        Args:
            all_rows, mine, owner, gathers: as for ``_move``.
        """
        inner, outer, packed = [mine, self._mpi.BYTE], None, None
        order = np.argsort(owner, kind="stable")
        if all_rows is not None:
            packed = np.empty_like(all_rows) if gathers else _await_gpu(all_rows[order])
            row_bytes = mine.shape[1] * mine.itemsize
            sizes = (np.bincount(owner, minlength=self.size) * row_bytes).tolist()
            outer = [packed, sizes, None, self._mpi.BYTE]
        if not gathers:
            self._world.Scatterv(outer, inner, root=0)
            return
        self._world.Gatherv(inner, outer, root=0)
        if all_rows is not None:
            all_rows[order] = packed

    def _move_row_by_row(
        self,
        all_rows: Array | None,
        mine: Array,
        owner: Array,
        gathers: bool,
    ) -> None:
        """Exchange the first row of every rank, then the second row, and so on.

        Rows are received at their final place, without a copy in the order of ranks.
        All exchanges run at the same time, except for arrays that may be on a GPU: some
        MPI libraries accept GPU memory only in blocking calls.

        Args:
            all_rows, mine, owner, gathers: as for ``_move``.
        """
        positions = [np.flatnonzero(owner == rank) for rank in range(self.size)]
        row = self._mpi.BYTE.Create_contiguous(mine.shape[1] * mine.itemsize).Commit()
        requests = []
        for turn in range(max(map(len, positions))):
            counts = [int(turn < len(own)) for own in positions]
            places = [int(own[turn]) if turn < len(own) else 0 for own in positions]
            outer = None if all_rows is None else [all_rows, (counts, places), row]
            inner = [mine[turn : turn + 1], counts[self.rank], row]
            if gathers and self.takes_gpu:
                self._world.Gatherv(inner, outer, root=0)
            elif gathers:
                requests.append(self._world.Igatherv(inner, outer, root=0))
            elif self.takes_gpu:
                self._world.Scatterv(outer, inner, root=0)
            else:
                requests.append(self._world.Iscatterv(outer, inner, root=0))
        self._mpi.Request.Waitall(requests)
        row.Free()

    def finalize(self) -> None:
        with self._exchange():
            self._watchdog.receive_all()
        with self._watchdog.blocking():
            self._mpi.Finalize()
        # From here on the process must not call os._exit: MPICH informs mpiexec in an
        # exit hook; otherwise mpiexec kills the ranks that are still running.

    def abort(self, code: int) -> NoReturn:
        flush()
        # When mpiexec kills the ranks, it drops output that it has not forwarded yet.
        time.sleep(0.3)
        try:
            self._world.Abort(code)
        finally:
            os._exit(code)  # for an MPI that has already been finalised


def reaches_gpus(kinds: str) -> bool:
    """Return whether MPI accepts GPU memory.

    Args:
        kinds: memory kinds such as ``system,cuda:device,mpi``. A kind without
            restrictors includes all its memory.
    """
    for kind in kinds.split(","):
        name, *restrictors = kind.strip().split(":")
        if name == "cuda" and (not restrictors or "device" in restrictors):
            return True
    return False


def _await_gpu(rows: Array) -> Array:
    """Return rows after a GPU has finished computing them. MPI does not wait for a GPU."""
    if getattr(rows, "is_cuda", False):
        import torch  # MPI must be initialised before heavy imports

        torch.cuda.synchronize(rows.device)
    return rows


def join(patience: float) -> Communicator:
    """Return the communicator of a process started by an MPI launcher.

    Args:
        patience: number of seconds after which ranks exit if not all have connected.
    """
    with _give_up_after(patience):
        mpi = _initialise()
        return World(mpi) if mpi.COMM_WORLD.size > 1 else OneProcess()


def _initialise() -> Any:
    """Initialise MPI and return the module ``mpi4py.MPI``.

    MPI is initialised through ctypes, which releases the interpreter's lock, so that
    another Python thread can end this process meanwhile. The import of mpi4py, which
    initialises MPI by default, does not release the lock.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True
    from mpi4py import MPI

    if not MPI.Is_initialized():
        library, provided = ctypes.CDLL(MPI.__file__), ctypes.c_int()
        given = None, None, MPI.THREAD_MULTIPLE, ctypes.byref(provided)
        library.MPI_Init_thread(*given)
        MPI.COMM_SELF.Set_errhandler(MPI.ERRORS_RETURN)
        MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    return MPI


@contextmanager
def _give_up_after(seconds: float) -> Iterator[None]:
    """End this process if the ranks do not connect in the block within ``seconds``."""
    met = threading.Event()

    def guard() -> None:
        if met.wait(seconds):
            return
        output.complain(
            f"not all ranks have connected within {seconds:g} s (runtime.hang_after); "
            "another rank has failed or exited; ending the job"
        )
        _abort(sys.modules.get("mpi4py.MPI"))

    threading.Thread(target=guard, daemon=True).start()
    try:
        yield
    finally:
        met.set()


def _abort(mpi: Any) -> NoReturn:
    """End this process and the job, whether MPI is initialised or not."""
    flush()
    try:
        if mpi is not None and mpi.Is_initialized():
            mpi.COMM_WORLD.Abort(1)
    finally:
        os._exit(1)
