"""Who runs where, in one line a rank."""

import os
import re

import pytest
import tiny

from hpcfl import config, crew
from hpcfl.communicator import Communicator
from hpcfl.preparation import prepare


@pytest.mark.parametrize(("numbers", "text"), [
    ([], ""), ([3], "3"), ([0, 1, 2, 3], "0-3"), ([7, 2, 1, 0, 5], "0-2, 5, 7"),
    (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 8 more")])
def test_ranges(numbers, text):
    assert crew._ranges(numbers) == text


def test_one_process_is_server_and_worker():
    alone = Communicator()
    (line,) = crew.muster(alone, prepare(config.parse(tiny.table("fedavg")), alone))
    cores = crew._ranges(os.sched_getaffinity(0))
    assert line == f"rank 0 on {alone.host} (pid {os.getpid()}, cores {cores}, 1 thread, cpu, clients 0-4)"
    assert re.search(r"cores \d", line)
