"""Who runs where, in one line a rank."""

import os
import re

import pytest
import tiny

from hpcfl.commands.experiments import run_table
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.simulation.prepare import prepare
from hpcfl.simulation.rank_list import _ranges, rank_list


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1, 2, 3], "0-3"),
        ([7, 2, 1, 0, 5], "0-2, 5, 7"),
        (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 8 more"),
    ],
)
def test_ranges(numbers, text):
    assert _ranges(numbers) == text


def test_one_process_is_server_and_worker():
    alone = OneProcess()
    (line,) = rank_list(alone, prepare(config.parse(tiny.table("fedavg")), alone))
    cores = _ranges(os.sched_getaffinity(0))
    assert (
        line
        == f"rank 0 on {alone.host} (pid {os.getpid()}, cores {cores}, 1 thread, cpu, clients 0-4)"
    )
    assert re.search(r"cores \d", line)


@pytest.mark.slow
def test_a_sweep_says_it_once_for_all_cells(tmp_path, no_figures, capsys):
    """And again where other clients live on a rank."""
    cases = [
        {"partition.counts": tiny.COUNTS[:n], "partition.clients": n} for n in (3, 5)
    ]
    table = tiny.table("fedavg", sweep={"cases": cases, "seed": [0, 1]})
    run_table(table, "s.toml", tmp_path / "out", False, OneProcess())
    said = [
        line.partition("cpu, ")[2]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("rank ")
    ]
    assert said == ["clients 0-2)", "clients 0-4)"]
