"""Simulated ranks: threads of this process that talk through JSON, as the real ones do."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest


class Board:
    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=20)
        self.collected, self.shared = [None] * size, None


class FakeCommunicator:
    def __init__(self, rank, size, board):
        self.rank, self.size, self.is_server, self.board = rank, size, rank == 0, board

    def gather(self, value):
        self.board.collected[self.rank] = json.loads(json.dumps(value))
        self.board.barrier.wait()
        result = list(self.board.collected) if self.is_server else None
        self.board.barrier.wait()
        return result

    def allgather(self, value):
        return self.bcast(self.gather(value))

    def bcast(self, value):
        if self.is_server:
            self.board.shared = json.dumps(value)
        self.board.barrier.wait()
        result = json.loads(self.board.shared)
        self.board.barrier.wait()
        return result


def _run(size, work):
    """The results of ``work(communicator)`` of every rank; an exception counts as a
    result.
    """
    board = Board(size)

    def guarded(rank):
        try:
            return work(FakeCommunicator(rank, size, board))
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, range(size)))


@pytest.fixture
def on_ranks():
    return _run


@pytest.fixture
def alone():
    return FakeCommunicator(0, 1, Board(1))
