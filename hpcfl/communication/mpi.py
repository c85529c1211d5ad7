"""All MPI of the project: the communicator of several ranks, and which communicator a process gets.

Ranks wait for each other by polling with a short sleep: a Python signal handler cannot run inside a blocking
MPI call, and idle ranks leave their core to others. What is small moves while they poll. What is large moves
only when all ranks have arrived, by blocking calls at full speed; but wide rows for rank 0 are offered by
each rank as soon as it has them, and travel while the others train. While they wait and while they train,
ranks send heartbeats; the job ends when one is silent too long.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from hpcfl.communication import texts
from hpcfl.communication.communicator import (
    Array,
    Communicator,
    Empty,
    OneProcess,
    flush,
)

# environment variables, of which a launcher of MPI ranks sets at least one
LAUNCHED_BY = (
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MPI_LOCALRANKID",
    "SLURM_PROCID",
    "PALS_RANKID",
)
SHORTEST_PAUSE = 5e-5  # seconds between two looks at who has arrived
# A pause is a share of the time waited so far, up to so many seconds: the longest of these and the shortest.
PAUSES = ((0.05, 2e-3), (0.005, 2e-2))
LOOK_ROUND = 0.02  # seconds between two looks at who is silent
BLOCK_BYTES = 1 << 28  # the most that one broadcast moves, as MPI counts in 32 bits
PIECE_BYTES = (
    1 << 19
)  # of sums that are added at once: more leave a core's cache before they are added
# Rows of this size or more travel straight from place to place, one at a time; smaller ones travel all
# together, copied into the order of ranks. Exchanges of less in all are small: they move while ranks poll.
WIDE_BYTES = 1 << 16
HEARTBEAT, OFFER, ROWS = 77, 78, 79  # the tags of messages
UNTIL_TOLD = (
    600.0  # seconds of silence that count as a hang until ``watch`` says how many
)


class World(Communicator):
    """The ranks of an MPI job."""

    def __init__(self, mpi: Any):
        self._mpi = mpi
        self._world = mpi.COMM_WORLD
        host = self._world.Split_type(mpi.COMM_TYPE_SHARED)
        super().__init__(self._world.rank, self._world.size, host.rank, host.size)
        # MPI says so since version 4.1.
        self.takes_gpu = reaches_gpus(
            self._world.Get_info().Get("mpi_memory_alloc_kinds") or ""
        )
        self._hang_after = float("inf")
        self._heard = [time.monotonic()] * self.size  # when each rank was last heard of
        self._blocked_since = float(
            "inf"
        )  # when the main thread entered a blocking call
        self._blocks, self._met = (
            0,
            False,
        )  # how many of ``together`` are open, and whether ranks met in them
        self._last_beat = 0.0
        self._pending: list[
            Any
        ] = []  # requests of heartbeats that may still be under way
        self._sent, self._received = (
            [0] * self.size,
            [0] * self.size,
        )  # heartbeats, by the other rank
        self._under_way = _Offers()
        self.watch(UNTIL_TOLD)

    def watch(self, seconds: float) -> None:
        first = self._hang_after == float("inf")
        self._hang_after = seconds
        self._heard = [time.monotonic()] * self.size
        if first:
            threading.Thread(target=self._guard, daemon=True).start()

    def _guard(self) -> None:
        """End the job when a blocking call takes too long; runs in a thread of its own.

        A rank that is inside a blocking call cannot poll for those that it exchanges with.
        """
        while time.monotonic() - self._blocked_since < self._hang_after:
            time.sleep(min(1.0, self._hang_after / 10))
        self._give_up("a rank that this one exchanges with")

    def _give_up(self, lost: str) -> NoReturn:
        """Say which rank is silent and end the job."""
        print(
            f"hpcfl: {lost} has been silent for {self._hang_after:g} s (runtime.hang_after); "
            "ending the job, the same command resumes it",
            file=sys.stderr,
        )
        self.abort(1)

    def beat(self) -> None:
        now = time.monotonic()
        if now - self._last_beat < min(5.0, self._hang_after / 10):
            return
        self._last_beat = now
        self._pending = [request for request in self._pending if not request.Test()]
        if (
            not self._pending
        ):  # as long as the last heartbeats were not received, no more are sent
            for other in range(1, self.size) if self.rank == 0 else [0]:
                self._pending.append(
                    self._world.Isend(
                        [bytearray(1), self._mpi.BYTE], dest=other, tag=HEARTBEAT
                    )
                )
                self._sent[other] += 1
        self._listen()

    def _listen(self) -> None:
        """Receive the heartbeats that have arrived."""
        status = self._mpi.Status()
        while self._world.Iprobe(tag=HEARTBEAT, status=status):
            self._world.Recv(
                [bytearray(1), self._mpi.BYTE], source=status.source, tag=HEARTBEAT
            )
            self._heard[status.source] = time.monotonic()
            self._received[status.source] += 1

    def _wait(self, request: Any) -> None:
        """Wait for the end of an exchange, polling; ends the job if a rank stays silent."""
        begun = looked = time.monotonic()
        while not request.Test():
            now = time.monotonic()
            self._take()
            if self._under_way.requests and not self._mpi.Request.Testall(
                self._under_way.requests
            ):
                begun = now  # what travels does so only while somebody looks
            if now - looked > LOOK_ROUND:
                looked = now
                self.beat()
                for other in range(1, self.size) if self.rank == 0 else [0]:
                    if now - self._heard[other] > self._hang_after:
                        self._give_up(self.ranks[other])
            time.sleep(
                max(
                    SHORTEST_PAUSE,
                    *(min(share * (now - begun), longest) for share, longest in PAUSES),
                )
            )
        self._heard = [time.monotonic()] * self.size

    @contextmanager
    def together(self) -> Iterator[None]:
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
            self._met = self._met and self._blocks > 0

    @contextmanager
    def _blocking(self) -> Iterator[None]:
        """A block of blocking calls, which begins when every rank is here."""
        with self.together():
            if not self._met:
                self._wait(self._world.Ibarrier())
                self._met = True
            self._blocked_since = time.monotonic()
            try:
                yield
            finally:
                self._blocked_since = float("inf")

    def _exchange(
        self,
        size: int,
        blocking: Callable[..., Any],
        polled: Callable[..., Any],
        *given: Any,
        **how: Any,
    ) -> None:
        """An exchange of ``size`` bytes in all, the same on every rank, by one of two calls that do the same.

        ``polled`` returns a request. Where arrays may lie on a GPU it is not used: not every MPI that takes
        such arrays in messages and blocking exchanges takes them in other exchanges.
        """
        if size < WIDE_BYTES and not self.takes_gpu:
            self._wait(polled(*given, **how))
        else:
            with self._blocking():
                blocking(*given, **how)

    def share(self, value: Any) -> Any:
        head, rest = texts.split(json.dumps(value).encode() if self.rank == 0 else b"")
        self._wait(self._world.Ibcast(head, root=0))
        if missing := texts.missing(head):
            rest = rest if self.rank == 0 else np.empty(missing, np.uint8)
            self._exchange(missing, self._world.Bcast, self._world.Ibcast, rest, root=0)
        return json.loads(texts.joined(head, rest))

    def collect(self, value: Any) -> list[Any] | None:
        with self._blocking():
            everyones = self._world.gather(json.dumps(value), root=0)
        return None if everyones is None else [json.loads(text) for text in everyones]

    def allgather(self, value: Any) -> list[Any]:
        head, rest = texts.split(json.dumps(value).encode())
        heads = np.empty((self.size, texts.HEAD_BYTES), np.uint8)
        self._wait(self._world.Iallgather(head, heads))
        sizes = [texts.missing(head) for head in heads]
        rests = np.empty(sum(sizes), np.uint8)
        if sum(sizes):
            self._exchange(
                sum(sizes),
                self._world.Allgatherv,
                self._world.Iallgatherv,
                rest,
                [rests, sizes, None, self._mpi.BYTE],
            )
        parts = zip(heads, np.split(rests, np.cumsum(sizes)[:-1]), strict=True)
        return [json.loads(texts.joined(head, rest)) for head, rest in parts]

    def agree(self, level: int) -> int:
        highest = np.array([level])
        self._wait(
            self._world.Iallreduce(self._mpi.IN_PLACE, highest, op=self._mpi.MAX)
        )
        return int(highest[0])

    def broadcast(
        self, row: Array | None, width: int, dtype: Any, empty: Empty = np.empty
    ) -> Array:
        row = empty(width, dtype) if row is None else row
        step = max(1, BLOCK_BYTES // row.itemsize)
        with self.together():
            for start in range(0, width, step):
                self._exchange(
                    row.nbytes,
                    self._world.Bcast,
                    self._world.Ibcast,
                    [row[start : start + step], self._mpi.BYTE],
                    root=0,
                )
        self.bytes_sent += row.nbytes * (self.size - 1)
        return row

    def scatter(
        self,
        rows: Array | None,
        owner: Array,
        width: int,
        dtype: Any,
        empty: Empty = np.empty,
    ) -> Array:
        mine = empty((int((owner == self.rank).sum()), width), dtype)
        if width * mine.itemsize >= WIDE_BYTES:
            with self._blocking():
                self._scatter_waves(rows, mine, owner)
        else:
            order, sizes = _route(owner, self.size, width * mine.itemsize)
            block = (
                None
                if rows is None
                else [_settled(rows[order]), sizes, None, self._mpi.BYTE]
            )
            self._exchange(
                sum(sizes),
                self._world.Scatterv,
                self._world.Iscatterv,
                block,
                [mine, self._mpi.BYTE],
                root=0,
            )
        self.bytes_sent += len(owner) * width * mine.itemsize
        return mine

    def gather(
        self, rows: Array, owner: Array, empty: Empty = np.empty
    ) -> Array | None:
        width = rows.shape[1]
        total = (
            empty((len(owner), width), str(rows.dtype).removeprefix("torch."))
            if self.rank == 0
            else None
        )
        order, sizes = _route(owner, self.size, width * rows.itemsize)
        block = None if total is None else np.empty_like(total)
        there = None if block is None else [block, sizes, None, self._mpi.BYTE]
        self._exchange(
            sum(sizes),
            self._world.Gatherv,
            self._world.Igatherv,
            [rows, self._mpi.BYTE],
            there,
            root=0,
        )
        if total is not None:
            total[order] = block
        self.bytes_received += len(owner) * width * rows.itemsize
        return total

    def highest(self, values: np.ndarray) -> np.ndarray:
        self._exchange(
            values.nbytes,
            self._world.Allreduce,
            self._world.Iallreduce,
            self._mpi.IN_PLACE,
            values,
            op=self._mpi.MAX,
        )
        self.bytes_received += values.nbytes * (self.size - 1)
        self.bytes_sent += values.nbytes * (self.size - 1)
        return values

    def total(self, values: np.ndarray) -> np.ndarray | None:
        flat = values.reshape(-1)
        step = PIECE_BYTES // flat.itemsize
        with self.together():
            for piece in np.split(flat, range(step, len(flat), step)):
                own = (piece, None) if self.rank else (self._mpi.IN_PLACE, piece)
                self._exchange(
                    values.nbytes,
                    self._world.Reduce,
                    self._world.Ireduce,
                    *own,
                    op=self._mpi.SUM,
                    root=0,
                )
        self.bytes_received += values.nbytes * (self.size - 1)
        return values if self.rank == 0 else None

    def offers(self, row_bytes: int) -> bool:
        return row_bytes >= WIDE_BYTES

    def offer(
        self, rows: Mapping[str, Array], positions: np.ndarray, total: int, empty: Empty
    ) -> None:
        self._under_way = offers = _Offers(total, empty)
        for name, own in rows.items() if len(positions) else ():
            told = [
                name,
                own.shape[1],
                str(own.dtype).removeprefix("torch."),
                positions.tolist(),
            ]
            text = json.dumps(told).encode()
            offers.requests.append(
                self._world.Isend([text, self._mpi.BYTE], dest=0, tag=OFFER)
            )
            offers.requests += [
                self._world.Isend([own[i : i + 1], self._mpi.BYTE], dest=0, tag=ROWS)
                for i in range(len(own))
            ]

    def _take(self) -> None:
        """Begin to receive the rows that other ranks have offered. Of one rank they come in their order."""
        offers, status = self._under_way, self._mpi.Status()
        while (
            self.rank == 0
            and offers.empty is not None
            and self._world.Iprobe(tag=OFFER, status=status)
        ):
            text = bytearray(status.Get_count(self._mpi.BYTE))
            self._world.Recv([text, self._mpi.BYTE], source=status.source, tag=OFFER)
            name, width, dtype, positions = json.loads(text)
            if (name, width, dtype) not in offers.landed:
                try:
                    offers.landed[name, width, dtype] = offers.empty(
                        (offers.total, width), dtype
                    )
                except (
                    Exception
                ) as error:  # the other ranks know nothing of it, and are met first
                    offers.failure, offers.empty = error, None
                    return
            rows = offers.landed[name, width, dtype]
            offers.requests += [
                self._world.Irecv(
                    [rows[i : i + 1], self._mpi.BYTE], source=status.source, tag=ROWS
                )
                for i in positions
            ]
            offers.taken += len(positions)
            self.bytes_received += len(positions) * width * rows.itemsize

    def offered(self, names: Sequence[str], count: int) -> dict[str, Array]:
        offers = self._under_way
        if names:
            with self._blocking():
                while self.rank == 0 and offers.taken < count * len(names):
                    if offers.failure is not None:
                        raise offers.failure
                    self._take()
                self._mpi.Request.Waitall(offers.requests)
        self._under_way = (
            _Offers()
        )  # nothing is taken before the next ``offer``, which may be long in coming
        return {name: rows for (name, _, _), rows in offers.landed.items()}

    def _scatter_waves(self, all_rows: Array | None, mine: Array, owner: Array) -> None:
        """One scatter for the first row of every rank, one for the second, and so on.

        Rows move straight from place to place: none are copied to be put in order first. All are under way at
        once, but for those that may lie on a GPU, as in ``_exchange``.

        all_rows: rank 0's ``[n, width]``, None elsewhere. mine: this rank's, which is received into.
        """
        positions = [np.flatnonzero(owner == rank) for rank in range(self.size)]
        row, requests = (
            self._mpi.BYTE.Create_contiguous(mine.shape[1] * mine.itemsize).Commit(),
            [],
        )
        for wave in range(max(map(len, positions))):
            counts = [int(wave < len(own)) for own in positions]
            places = [int(own[wave]) if wave < len(own) else 0 for own in positions]
            outer = None if all_rows is None else [all_rows, (counts, places), row]
            inner = [mine[wave : wave + 1], counts[self.rank], row]
            if self.takes_gpu:
                self._world.Scatterv(outer, inner, root=0)
            else:
                requests.append(self._world.Iscatterv(outer, inner, root=0))
        self._mpi.Request.Waitall(requests)
        row.Free()

    def end(self, code: int) -> NoReturn:
        flush()
        with self._blocking():
            expected = self._world.alltoall(self._sent)
            while (
                self._received != expected
            ):  # MPI must not be finalised with a message under way
                self._listen()
            self._mpi.Request.Waitall(self._pending)
        self._blocked_since = time.monotonic()
        self._mpi.Finalize()
        self._blocked_since = float("inf")
        # Not os._exit: MPICH tells mpiexec in an exit hook; without that it kills the ranks that are slower.
        sys.exit(code)

    def abort(self, code: int) -> NoReturn:
        flush()
        time.sleep(
            0.3
        )  # when mpiexec kills the ranks, it drops output that it has not passed on yet
        try:
            self._world.Abort(code)
        finally:
            os._exit(code)  # MPI may be gone already


@dataclass
class _Offers:
    """Rows on their way to rank 0 beside other exchanges.

    total, empty: as ``offer`` got them. landed: the rows on rank 0 by name, width and type, of which
    ``taken`` in all are there or have a request. failure: why there is no room for them. requests: of all
    that is being sent or received; they hold on to what is sent.
    """

    total: int = 0
    empty: Empty | None = None
    landed: dict[tuple[str, int, str], Array] = field(default_factory=dict)
    taken: int = 0
    failure: Exception | None = None
    requests: list[Any] = field(default_factory=list)


def reaches_gpus(kinds: str) -> bool:
    """Whether memory that MPI takes includes a GPU's: ``kinds`` as ``system,cuda:device,mpi``, where a kind
    without restrictors means all of it."""
    for kind in kinds.split(","):
        name, *restrictors = kind.strip().split(":")
        if name == "cuda" and (not restrictors or "device" in restrictors):
            return True
    return False


def _settled(rows: Array) -> Array:
    """Rows that may just have been put in order by a GPU, once they are: MPI knows nothing of what is still
    being computed."""
    if getattr(rows, "is_cuda", False):
        import torch  # after MPI, which comes before any heavy import

        torch.cuda.synchronize(rows.device)
    return rows


def _route(owner: Array, size: int, row_bytes: int) -> tuple[Array, list[int]]:
    """The positions [n] of rows in the order of their ranks, and how many bytes each rank's rows are."""
    return np.argsort(owner, kind="stable"), (
        np.bincount(owner, minlength=size) * row_bytes
    ).tolist()


def launched_world_size() -> int | None:
    """How many ranks the launcher says that it started; None where it does not say."""
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"):
        if name in os.environ and (
            name != "SLURM_NTASKS" or "SLURM_PROCID" in os.environ
        ):
            return int(os.environ[name])
    return None


def connect() -> Communicator:
    """The communicator of this process: by MPI if it is one of several ranks, else that of a single process.

    It must be called before any heavy import: a rank that dies before MPI is initialised leaves the others
    waiting for ever.
    """
    if not any(name in os.environ for name in LAUNCHED_BY):
        return OneProcess()
    from mpi4py import MPI  # importing initialises MPI

    return World(MPI) if MPI.COMM_WORLD.size > 1 else OneProcess()
