"""Interface of communicators, the communicator of one process, and agreement of ranks.

Rank 0 is the server; the other ranks are workers. A single process is both. The
communicator of several ranks is in ``mpi.py``.

* ``Communicator`` is the interface, ``OneProcess`` the communicator of a single
  process.
* ``agreed`` raises an exception of one rank on all ranks.
* ``require_equal`` compares settings between ranks.
"""

import hashlib
import json
import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import numpy as np

from hpcfl.errors import RunFailure, UserError, lack_of_memory

# A NumPy array or a contiguous tensor of torch, which may be on a GPU if ``takes_gpu``.
Array = Any
# A function of (shape, name of the dtype) that allocates an array to receive into.
Empty = Callable[[Sequence[int], str], Array]


VALUE_LETTERS = 100  # maximum number of characters of a value in a message
# Seconds without a heartbeat that count as a hang, until ``watch`` sets the number.
HANG_AFTER = 600.0


class RemoteError(Exception):
    """Cause of an error on another rank, with the traceback of that rank as its text."""


class Process:
    """A process of a job, with its rank, the number of ranks and its host."""

    local_rank, local_size = 0, 1  # rank and number of ranks on this host
    host = os.uname().nodename

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @property
    def is_server(self) -> bool:
        """Return whether this process is rank 0."""
        return self.rank == 0


class Communicator(Process, ABC):
    """A process with the exchanges between the ranks of its job.

    All ranks call the methods marked as collective in the same order.

    Attributes:
        takes_gpu: whether arrays may be in GPU memory.
        bytes_sent, bytes_received: bytes of arrays that rank 0 has sent to workers and
            received from them.
        ranks: names of the ranks in error messages.
    """

    takes_gpu = False

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        """Set the rank and the number of ranks, in the job and on this host.

        Args:
            rank, size: rank in the job and number of ranks.
            local_rank, local_size: rank on this host and number of ranks there.
        """
        super().__init__(rank, size)
        self.local_rank, self.local_size = local_rank, local_size
        self.bytes_sent = 0
        self.bytes_received = 0
        self.ranks = [
            f"rank {other}{f' on {self.host}' if other == rank else ''}"
            for other in range(size)
        ]

    def introduce(self, ranks: list[str]) -> list[str]:
        """Set the names of ranks in error messages and return the names that are new."""
        before, self.ranks = self.ranks, ranks
        return [rank for rank in ranks if rank not in before]

    @abstractmethod
    def watch(self, seconds: float) -> None:
        """Set the number of seconds after which a silent rank ends the job."""

    @abstractmethod
    def collective_block(self) -> AbstractContextManager[None]:
        """Begin a block of consecutive exchanges. Collective call.

        Ranks wait for each other once, at the beginning of the outermost block. A
        waiting rank handles stop signals and ends the job if another rank is silent too
        long.
        """

    @abstractmethod
    def bcast(self, value: Any) -> Any:
        """Return rank 0's JSON-able value on every rank. Collective call."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any] | None:
        """Return all values in rank order on rank 0, else None. Collective call.

        Values are JSON-able.
        """

    @abstractmethod
    def allgather(self, value: Any) -> list[Any]:
        """Return all JSON-able values in rank order on every rank. Collective call."""

    @abstractmethod
    def bcast_row(
        self,
        row: Array | None,
        width: int,
        dtype: str,
        empty: Empty,
    ) -> Array:
        """Return rank 0's array [width] on every rank. Collective call.

        Args:
            row: array on rank 0; None on other ranks.
            width: number of elements.
            dtype: name of the dtype, such as ``float32``.
            empty: function that allocates the receive buffer.
        """

    @abstractmethod
    def scatter_rows(
        self,
        rows: Array | None,
        owner: Array,
        width: int,
        dtype: str,
        empty: Empty,
    ) -> Array:
        """Send each of rank 0's rows to its owner. Collective call.

        Args:
            rows: rows on rank 0, ``[n, width]``; None on other ranks.
            owner: rank of each row, [n].
            width: number of columns.
            dtype: name of the dtype, such as ``float32``.
            empty: function that allocates the receive buffer.

        Returns:
            The rows of this rank, in order.
        """

    @abstractmethod
    def gather_rows(
        self, rows: Array, owner: Array, empty: Empty = np.empty
    ) -> Array | None:
        """Return all ranks' rows ``[n, width]`` on rank 0, else None. Collective call.

        Args:
            rows: rows of this rank, ``[k, width]``.
            owner: rank that sends each row of the result, [n].
            empty: function that allocates the receive buffer.
        """

    @abstractmethod
    def allreduce_max_array(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum of arrays on every rank. Collective call.

        Args:
            values: array of this rank, which may be overwritten. All ranks have the
                same shape.
        """

    @abstractmethod
    def reduce_sum(self, values: np.ndarray) -> np.ndarray | None:
        """Return the sum of all ranks' arrays on rank 0, else None. Collective call.

        Args:
            values: contiguous array of this rank, which may be overwritten. All ranks
                have the same shape. Elements are integers, or floats with whole
                numbers, so that the order of addition does not matter.
        """

    @abstractmethod
    def finalize(self) -> None:
        """End all communication, so that ranks can exit independently. Collective call."""

    def end(self, code: int) -> NoReturn:
        """Exit with a code on which all ranks have agreed. Collective call."""
        flush()
        self.finalize()
        sys.exit(code)

    @abstractmethod
    def abort(self, code: int) -> NoReturn:
        """End all ranks at once."""


class OneProcess(Communicator):
    """Communicator of a single process, which is server and worker.

    Exchanges return their argument.
    """

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1)

    def watch(self, seconds: float) -> None:
        """Do nothing, because there is no other rank."""

    @contextmanager
    def collective_block(self) -> Iterator[None]:
        yield

    def bcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any] | None:
        return [value]

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def bcast_row(
        self,
        row: Array | None,
        width: int,
        dtype: str,
        empty: Empty,
    ) -> Array:
        assert row is not None
        return row

    def scatter_rows(
        self,
        rows: Array | None,
        owner: Array,
        width: int,
        dtype: str,
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
    """A single process that hpcfl may not end, such as the kernel of a notebook."""

    def abort(self, code: int) -> NoReturn:
        raise KeyboardInterrupt


def flush() -> None:
    """Flush standard output and error, which an immediate exit would lose."""
    sys.stdout.flush()
    sys.stderr.flush()


@contextmanager
def agreed(communicator: Communicator, names_rank: bool = True) -> Iterator[None]:
    """Raise an exception on all ranks if the block fails on any rank. Collective call.

    A failing rank raises its own exception. Other ranks raise the first failure: a
    UserError for a UserError, else a RunFailure. A lack of memory is a RunFailure even
    if it looks like invalid input.

    Args:
        communicator: communicator of the ranks.
        names_rank: whether the message on other ranks begins with the failing rank.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
        if isinstance(error, UserError):
            failure = lack_of_memory(error) or error
    report = None if failure is None else _describe(failure)
    reports = communicator.allgather(report)
    if failure is not None:
        raise failure
    for rank, found in enumerate(reports):
        if found:
            is_mistake, text, cause = found
            line = f"rank {rank}: {text}" if names_rank else text
            kind = UserError if is_mistake else RunFailure
            raise kind(line) from RemoteError(cause)


def _describe(failure: Exception) -> tuple[bool, str, str]:
    """Return whether a failure is a UserError, its message, and its cause's traceback."""
    text = str(failure) or type(failure).__name__
    cause = "".join(traceback.format_exception(failure.__cause__ or failure))
    return isinstance(failure, UserError), text, cause


def require_equal(
    communicator: Communicator, settings: Mapping[str, Any], advice: str
) -> None:
    """Raise UserError on all ranks if a setting differs between ranks. Collective call.

    The message has the first key that differs, with two values and their ranks.

    Args:
        communicator: communicator of the ranks.
        settings: JSON-able values by key.
        advice: end of the message.
    """
    text = json.dumps(settings, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if len(set(communicator.allgather(digest))) == 1:
        return
    everyones = communicator.allgather(dict(settings))
    for rank, other in enumerate(everyones):
        keys = everyones[0].keys() | other.keys()
        # Keys such as seed come before keys that have its value as their default.
        for key in sorted(keys, key=lambda key: (key.count("."), key)):
            if everyones[0].get(key) != other.get(key):
                first, second = _show(everyones[0], key), _show(other, key)
                raise UserError(
                    f"{key}: {first} on rank 0, {second} on rank {rank}; {advice}"
                )


def _show(settings: Mapping[str, Any], key: str) -> str:
    """Return a value as text of limited length."""
    if key not in settings:
        return "no value"
    text = json.dumps(settings[key])
    return text if len(text) <= VALUE_LETTERS else f"{text[:VALUE_LETTERS]} …"
