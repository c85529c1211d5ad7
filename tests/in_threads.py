"""Ranks as threads of this process, with the exchanges of MPI ranks.

One rank runs at a time, from one exchange to the next, so all ranks can share torch's
random generator and other state of the process.
"""

import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from hpcfl.communication.communicator import Array, Communicator, Empty

PATIENCE = 300  # seconds; a failed rank releases the others at once


class Meeting:
    """State that the ranks of a job share."""

    def __init__(self, size: int):
        self.given: list[Any] = [None] * size
        self.all_here = threading.Barrier(size)
        self.baton = threading.Lock()  # of the running rank


class Threaded(Communicator):
    """One rank of such a job."""

    def __init__(self, rank: int, meeting: Meeting):
        size = len(meeting.given)
        super().__init__(rank, size, local_rank=rank, local_size=size)
        self._meeting = meeting

    def watch(self, seconds: float):
        """Do nothing: ranks that wait too long give up by themselves."""

    @contextmanager
    def collective_block(self):
        yield

    def _wait_for_all(self):
        self._meeting.baton.release()
        try:
            self._meeting.all_here.wait(PATIENCE)
        finally:
            self._meeting.baton.acquire()

    def _exchange(self, value, take: Callable[[list[Any]], Any]):
        """Return the result of ``take`` for the values of all ranks. A rank continues
        only after all have read.
        """
        self._meeting.given[self.rank] = value
        self._wait_for_all()
        result = take(self._meeting.given)
        self._wait_for_all()
        return result

    def bcast(self, value):
        text = json.dumps(value) if self.is_server else ""
        return self._exchange(text, lambda texts: json.loads(texts[0]))

    def gather(self, value) -> list[Any] | None:
        everyones = self.allgather(value)
        return everyones if self.is_server else None

    def allgather(self, value) -> list[Any]:
        return self._exchange(
            json.dumps(value), lambda texts: [json.loads(text) for text in texts]
        )

    def bcast_row(
        self, row: Array | None, width: int, dtype, empty: Empty = np.empty
    ) -> Array:
        def take(rows: list[Array]) -> Array:
            if row is not None:
                return row
            received = empty((width,), dtype)
            received[:] = rows[0]
            return received

        return self._exchange(row, take)

    def scatter_rows(
        self,
        rows: Array | None,
        owner: Array,
        width: int,
        dtype,
        empty: Empty,
    ) -> Array:
        def take(given: list[Array]) -> Array:
            mine = empty((int((owner == self.rank).sum()), width), dtype)
            mine[:] = given[0][owner == self.rank]
            return mine

        return self._exchange(rows, take)

    def gather_rows(
        self, rows: Array, owner: Array, empty: Empty = np.empty
    ) -> Array | None:
        def take(given: list[Array]) -> Array | None:
            if not self.is_server:
                return None
            dtype = str(rows.dtype).removeprefix("torch.")
            everyones = empty((len(owner), rows.shape[1]), dtype)
            for rank, own in enumerate(given):
                everyones[owner == rank] = own
            return everyones

        return self._exchange(rows, take)

    def allreduce_max_array(self, values: np.ndarray) -> np.ndarray:
        return self._exchange(values, lambda given: np.max(given, axis=0))

    def reduce_sum(self, values: np.ndarray) -> np.ndarray | None:
        total = self._exchange(values, lambda given: np.sum(given, axis=0))
        return total if self.is_server else None

    def finalize(self):
        pass

    def abort(self, code: int) -> NoReturn:
        raise SystemExit(code)


def on_ranks(size: int, work: Callable[[Communicator], Any]):
    """Run ``work`` on every rank and return the result of rank 0, or raise the failure
    of a rank.
    """
    meeting = Meeting(size)
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def be(rank: int):
        with meeting.baton:
            try:
                results[rank] = work(Threaded(rank, meeting))
            except BaseException as failure:
                failures.append(failure)
                meeting.all_here.abort()

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results[0]
