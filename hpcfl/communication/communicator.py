"""What a rank can do with the others: the contract, and the case of a single process.

Rank 0 is the server; the other ranks are workers; a single process is both. The
communicator of several ranks is in ``mpi.py``.
"""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import numpy as np

# an array of NumPy or a contiguous tensor of torch, which may lie on a GPU if
# ``takes_gpu``
Array = Any
Empty = Callable[
    [Any, Any], Array
]  # of (shape, name of the dtype): an array to receive into


class Process:
    """One process of a job: which rank it is, of how many, and where. It exchanges
    nothing.
    """

    local_rank, local_size = 0, 1  # among the ranks of this host
    host = os.uname().nodename

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @property
    def is_server(self) -> bool:
        return self.rank == 0


class Communicator(Process, ABC):
    """A process with everything it can do together with the other ranks of its job.

    What is marked collective must be called by all ranks, in the same order. Exchanges
    of arrays count what rank 0 sends and receives in ``bytes_sent`` and
    ``bytes_received``.
    """

    takes_gpu = False  # whether arrays may lie in a GPU's memory

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        """``local_rank`` of ``local_size``: which of the ranks on this host it is."""
        super().__init__(rank, size)
        self.local_rank, self.local_size = local_rank, local_size
        self.bytes_sent = 0  # by rank 0 to the workers, so far
        self.bytes_received = 0  # by rank 0 from the workers, so far
        self.ranks = [
            f"rank {other}{f' on {self.host}' if other == rank else ''}"
            for other in range(size)
        ]

    def introduce(self, ranks: list[str]) -> list[str]:
        """From now on error lines call each rank as in ``ranks``; returns the names
        that are new.
        """
        before, self.ranks = self.ranks, ranks
        return [rank for rank in ranks if rank not in before]

    @abstractmethod
    def watch(self, seconds: float) -> None:
        """From now on the job ends when a rank is silent for so many seconds."""

    @abstractmethod
    def collective_block(self) -> AbstractContextManager[None]:
        """Collective. A block of exchanges that follow each other at once.

        Ranks wait for each other at its beginning, not before each exchange, nor where
        one such block lies in another. While a rank waits it hears stop signals, and
        ends the job where another is silent too long.
        """

    @abstractmethod
    def bcast(self, value: Any) -> Any:
        """Collective. Rank 0's JSON-able value, on every rank."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any] | None:
        """Collective. Every rank's JSON-able value in rank order, on rank 0; None
        elsewhere.
        """

    @abstractmethod
    def allgather(self, value: Any) -> list[Any]:
        """Collective. Every rank's JSON-able value in rank order, on every rank."""

    @abstractmethod
    def allreduce_max(self, number: int) -> int:
        """Collective. The highest number that any rank gives, on every rank."""

    @abstractmethod
    def bcast_row(
        self, row: Array | None, width: int, dtype: Any, empty: Empty = np.empty
    ) -> Array:
        """Collective. Rank 0's array [width], on every rank.

        Args:
            row: None on the other ranks.
            empty: makes what they receive into.
        """

    @abstractmethod
    def scatter_rows(
        self,
        rows: Array | None,
        owner: Array,
        width: int,
        dtype: Any,
        empty: Empty = np.empty,
    ) -> Array:
        """Collective. Sends each of rank 0's rows to its owner; returns this rank's
        rows in their order.

        Args:
            rows: ``[n, width]``; None on the other ranks.
            owner: the rank of each row, [n].
            empty: makes what a rank receives its rows in.
        """

    @abstractmethod
    def gather_rows(
        self, rows: Array, owner: Array, empty: Empty = np.empty
    ) -> Array | None:
        """Collective. The reverse of ``scatter_rows``: all rows ``[n, width]`` on rank
        0, None elsewhere.

        Args:
            rows: this rank's, ``[its own, width]``.
            owner: the rank that each row of the result comes from, [n].
            empty: makes what rank 0 receives rows in.
        """

    @abstractmethod
    def allreduce_max_array(self, values: np.ndarray) -> np.ndarray:
        """Collective. The largest value of each entry in the ranks' arrays of one
        shape, on every rank.

        values: this rank's array, which may be written to.
        """

    @abstractmethod
    def reduce_sum(self, values: np.ndarray) -> np.ndarray | None:
        """Collective. The sum of the ranks' arrays of one shape, on rank 0; None
        elsewhere.

        values: this rank's array without gaps, of integers or of floats that hold whole
        numbers, so that the order in which they are added does not matter; it may be
        written to.
        """

    @abstractmethod
    def finalize(self) -> None:
        """Collective. The last exchange: afterwards each rank may end in its own time."""

    def end(self, code: int) -> NoReturn:
        """Collective. Leave the job in order, with an exit code that all ranks have
        agreed on.
        """
        flush()
        self.finalize()
        sys.exit(code)

    @abstractmethod
    def abort(self, code: int) -> NoReturn:
        """End all ranks at once, whatever they are doing."""


class OneProcess(Communicator):
    """A process on its own, server and worker at once: an exchange returns what it is
    given.
    """

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1)

    def watch(self, seconds: float) -> None:
        """Does nothing: there is no other rank that could be silent."""

    @contextmanager
    def collective_block(self) -> Iterator[None]:
        yield

    def bcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any] | None:
        return [value]

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def allreduce_max(self, number: int) -> int:
        return number

    def bcast_row(
        self, row: Array | None, width: int, dtype: Any, empty: Empty = np.empty
    ) -> Array:
        assert row is not None
        return row

    def scatter_rows(
        self,
        rows: Array | None,
        owner: Array,
        width: int,
        dtype: Any,
        empty: Empty = np.empty,
    ) -> Array:
        assert rows is not None
        return rows

    def gather_rows(
        self, rows: Array, owner: Array, empty: Empty = np.empty
    ) -> Array | None:
        return rows

    def allreduce_max_array(self, values: np.ndarray) -> np.ndarray:
        return values

    def reduce_sum(self, values: np.ndarray) -> np.ndarray | None:
        return values

    def finalize(self) -> None:
        pass

    def abort(self, code: int) -> NoReturn:
        flush()
        os._exit(code)


class Guest(OneProcess):
    """A process on its own that is not hpcfl's to end, such as a notebook's kernel."""

    def abort(self, code: int) -> NoReturn:
        raise KeyboardInterrupt


def flush() -> None:
    """Write out what was printed: a process that ends at once would lose it."""
    sys.stdout.flush()
    sys.stderr.flush()
