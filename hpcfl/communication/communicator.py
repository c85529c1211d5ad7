"""The contract of a communicator, the communicator of a single process, and the
agreement of all ranks on failures and settings.

Rank 0 is the server; the other ranks are workers; a single process is both. The
communicator of several ranks is in ``mpi.py``.
"""

import hashlib
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import numpy as np

from hpcfl.errors import RunFailure, UserError, lack_of_memory

# an array of NumPy or a contiguous tensor of torch, which may be on a GPU if
# ``takes_gpu``
Array = Any
Empty = Callable[
    [Any, Any], Array
]  # of (shape, name of the dtype): an array to receive into


SHOWN = 100  # characters of a value in a message
# seconds of silence that count as a hang until ``watch`` says how many
UNTIL_TOLD = 600.0


class Process:
    """A process of a job, with its rank, the number of ranks and its host."""

    local_rank, local_size = 0, 1  # among the ranks of this host
    host = os.uname().nodename

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @property
    def is_server(self) -> bool:
        return self.rank == 0


class Communicator(Process, ABC):
    """A process with the exchanges between the ranks of its job.

    All ranks call the methods marked collective in the same order. ``bytes_sent`` and
    ``bytes_received`` count the array bytes that rank 0 sends and receives.
    """

    takes_gpu = False  # whether arrays may be in a GPU's memory

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        """Set the rank among all ranks and among the ``local_size`` ranks of this host."""
        super().__init__(rank, size)
        self.local_rank, self.local_size = local_rank, local_size
        self.bytes_sent = 0  # by rank 0 to the workers, so far
        self.bytes_received = 0  # by rank 0 from the workers, so far
        self.ranks = [
            f"rank {other}{f' on {self.host}' if other == rank else ''}"
            for other in range(size)
        ]

    def introduce(self, ranks: list[str]) -> list[str]:
        """Set the names of ranks in error lines and return the new names."""
        before, self.ranks = self.ranks, ranks
        return [rank for rank in ranks if rank not in before]

    @abstractmethod
    def watch(self, seconds: float) -> None:
        """End the job when a rank is silent for so many seconds."""

    @abstractmethod
    def collective_block(self) -> AbstractContextManager[None]:
        """Begin a block of consecutive exchanges. Collective.

        Ranks wait for each other once, at the beginning of the outermost block. A
        waiting rank handles stop signals and ends the job if another rank is silent too
        long.
        """

    @abstractmethod
    def bcast(self, value: Any) -> Any:
        """Return rank 0's JSON-able value on every rank. Collective."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any] | None:
        """Return all JSON-able values in rank order on rank 0, None elsewhere.
        Collective.
        """

    @abstractmethod
    def allgather(self, value: Any) -> list[Any]:
        """Return all JSON-able values in rank order on every rank. Collective."""

    @abstractmethod
    def allreduce_max(self, number: int) -> int:
        """Return the maximum of all ranks' numbers on every rank. Collective."""

    @abstractmethod
    def bcast_row(
        self,
        row: Array | None,
        width: int,
        dtype: Any,
        empty: Empty = np.empty,
    ) -> Array:
        """Return rank 0's array [width] on every rank. Collective.

        Args:
            row: the array; None on the other ranks.
            empty: allocates the receive buffer.
        """

    @abstractmethod
    def scatter_rows(
        self,
        rows: Array | None,
        owner: Array,
        width: int,
        dtype: Any,
        empty: Empty,
    ) -> Array:
        """Send each of rank 0's rows to its owner; return this rank's rows in order.
        Collective.

        Args:
            rows: ``[n, width]``; None on the other ranks.
            owner: the rank of each row, [n].
            empty: allocates the receive buffer.
        """

    @abstractmethod
    def gather_rows(
        self, rows: Array, owner: Array, empty: Empty = np.empty
    ) -> Array | None:
        """Return all ranks' rows ``[n, width]`` on rank 0, None elsewhere. Collective.

        Args:
            rows: this rank's rows, ``[its own, width]``.
            owner: the source rank of each row of the result, [n].
            empty: allocates the receive buffer.
        """

    @abstractmethod
    def allreduce_max_array(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum of equally shaped arrays on every rank.
        Collective.

        values: this rank's array, which may be overwritten.
        """

    @abstractmethod
    def reduce_sum(self, values: np.ndarray) -> np.ndarray | None:
        """Return the sum of equally shaped arrays on rank 0, None elsewhere.
        Collective.

        values: this rank's contiguous array of integers or of floats that hold whole
        numbers. The order of addition therefore does not matter. The array may be
        overwritten.
        """

    @abstractmethod
    def finalize(self) -> None:
        """End all communication; afterwards each rank exits at its own time.
        Collective.
        """

    def end(self, code: int) -> NoReturn:
        """Exit with a code that all ranks have agreed on. Collective."""
        flush()
        self.finalize()
        sys.exit(code)

    @abstractmethod
    def abort(self, code: int) -> NoReturn:
        """End all ranks at once."""


class OneProcess(Communicator):
    """A single process, server and worker at once, whose exchanges return their
    argument.
    """

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1)

    def watch(self, seconds: float) -> None:
        """Do nothing: there is no other rank."""

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
        self,
        row: Array | None,
        width: int,
        dtype: Any,
        empty: Empty = np.empty,
    ) -> Array:
        assert row is not None
        return row

    def scatter_rows(
        self,
        rows: Array | None,
        owner: Array,
        width: int,
        dtype: Any,
        empty: Empty,
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
    """A single process that hpcfl may not end, such as a notebook's kernel."""

    def abort(self, code: int) -> NoReturn:
        raise KeyboardInterrupt


def flush() -> None:
    """Flush standard output and error, which an immediate exit would lose."""
    sys.stdout.flush()
    sys.stderr.flush()


@contextmanager
def agreed(communicator: Communicator) -> Iterator[None]:
    """Raise an exception on all ranks if the block fails on any. Collective.

    A failing rank raises its own exception. The other ranks raise the first failure
    with its rank and message: a UserError for a UserError, else a RunFailure. A lack of
    memory is a RunFailure even if it looks like bad input.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
        if isinstance(error, UserError):
            failure = lack_of_memory(error) or error
    report = (
        None
        if failure is None
        else [isinstance(failure, UserError), str(failure) or type(failure).__name__]
    )
    first = _first(communicator.allgather(report))
    if failure is not None:
        raise failure
    if first:
        raise (UserError if first[0] else RunFailure)(first[1])


def _first(report: list[list[Any] | None]) -> list[Any] | None:
    """Return [is a UserError, message with the rank] of the lowest failing rank, if
    any.
    """
    for rank, mine in enumerate(report):
        if mine:
            return [mine[0], f"rank {rank}: {mine[1]}"]
    return None


def require_equal(
    communicator: Communicator, settings: Mapping[str, Any], advice: str
) -> None:
    """Raise UserError on all ranks if a setting differs between ranks. Collective.

    The message names the first key that differs, with two values and their ranks.

    Args:
        communicator: The communicator of the ranks.
        settings: JSON-able values by key.
        advice: The end of the message.
    """
    text = json.dumps(settings, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if len(set(communicator.allgather(digest))) == 1:
        return
    everyones = communicator.allgather(dict(settings))
    for rank, other in enumerate(everyones):
        keys = everyones[0].keys() | other.keys()
        # a key such as seed before those that have its value as their default
        for key in sorted(keys, key=lambda key: (key.count("."), key)):
            if everyones[0].get(key) != other.get(key):
                first, second = _shown(everyones[0], key), _shown(other, key)
                raise UserError(
                    f"{key}: {first} on rank 0, {second} on rank {rank}; {advice}"
                )


def _shown(settings: Mapping[str, Any], key: str) -> str:
    """Return a value as text of limited length."""
    if key not in settings:
        return "no value"
    text = json.dumps(settings[key])
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} …"
