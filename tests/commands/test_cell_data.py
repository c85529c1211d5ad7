"""Data that some cells of a sweep lack, or that cannot be split for these cells."""

import tiny
from refusals import expect_refusal

from hpcfl.commands.cell_data import try_data
from hpcfl.data import datasets
from hpcfl.experiment import config


def cells(*sections):
    tables = [tiny.table("fedavg", **section) for section in sections]
    return {str(place): config.parse(table) for place, table in enumerate(tables)}


def test_each_data_set_is_read_once_and_each_partition_drawn(monkeypatch):
    reads = []
    load = datasets.load
    monkeypatch.setattr(
        datasets,
        "load",
        lambda data, seed: reads.append(data.dataset) or load(data, seed),
    )
    found = cells(
        {},
        {"seed": 5},
        {"data": {"dataset": "digits"}},
        {"data": {"dataset": "digits"}, "training": {"validation": 0.2}},
        {"data": {"dataset": "digits"}, "training": {"lr": 0.2}},
    )
    try_data(found, found["0"])
    assert reads == ["digits"]


def test_the_cell_is_named(tmp_path):
    missing = {"dataset": "cifar-10", "root": str(tmp_path)}
    many = {"counts": [[10**6, 0, 0, 0]] * 5}
    for wrong in (
        {"data": missing},
        {"data": {"dataset": "digits"}, "partition": many},
    ):
        found = cells({}, {"seed": 5}, wrong)
        with expect_refusal(r"^2: "):
            try_data(found, found["0"])
