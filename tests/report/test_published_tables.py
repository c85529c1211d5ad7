"""Every packed table in ``results``: a cheap cell of it is played again.

A table is found by its file's name; nothing is to be written here for a new one.
"""

import math
from pathlib import Path

import pytest

from hpcfl.api import run
from hpcfl.commands.verify import PLAYED_BY, verify
from hpcfl.communication.communicator import OneProcess
from hpcfl.data import datasets
from hpcfl.report import packed, summary
from hpcfl.storage.packed_runs import SUFFIX, unpacked
from hpcfl.trained.experiment import named

RESULTS = Path(__file__).parents[2] / "results"
LOOKED_AT = 24  # runs of a table: reading all of a thousand takes a minute


def tables():
    return sorted(RESULTS.rglob(f"*{SUFFIX}"))


def some_runs(table):
    """At most ``LOOKED_AT`` runs of a table, the first one and then every so many."""
    with unpacked(table) as folder:
        places = sorted(folder.iterdir())
        step = math.ceil(len(places) / LOOKED_AT)
        return [summary.load(place) for place in places[::step]]


def is_playable(one):
    """Whether a run needs nothing but the package: no file, and no module of a user."""
    if named([one.config[section] for section in PLAYED_BY]):
        return False
    return datasets.find(one.config["data"]["dataset"]).built_in


def cheapest(runs):
    """The run with the fewest samples over all its rounds; None where none can be
    played here.
    """
    playable = [one for one in runs if is_playable(one)]
    if not playable:
        return None
    return min(
        playable,
        key=lambda one: (
            one.config["rounds"] * int(one.results.static["train_counts"].sum())
        ),
    )


def check(table, capsys):
    """Runs of a table are whole, and the cheapest comes out as it was stored."""
    runs = some_runs(table)
    assert runs
    for one in runs:
        assert one.summary.finished and one.results.header["processor"]
    chosen = cheapest(runs)
    if chosen is not None:
        verify(table, 1, [chosen.label], None, (), OneProcess())
        assert capsys.readouterr().out.splitlines()[-1].startswith(f"{chosen.label}: ")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A table of two runs, of which the second is cheaper."""
    monkeypatch.chdir(tmp_path)
    runs = []
    for rounds in (3, 2):
        table = {
            "rounds": rounds,
            "partition": {"clients": 3},
            "model": {"hidden": [4]},
            "method": {"name": "fedavg"},
        }
        runs.append(run(table, out=tmp_path / f"rounds={rounds}", progress=False))
    packed.write(runs, tmp_path / f"made{SUFFIX}")
    return tmp_path / f"made{SUFFIX}"


@pytest.mark.slow
def test_a_cheap_cell_of_each_table_is_played_again(made, capsys):
    assert cheapest(some_runs(made)).label == "rounds=2"
    for table in [made, *tables()]:
        check(table, capsys)
