"""The packed tables in ``results`` are complete, and the cheapest cell of each folder
is repeated; ``hpcfl verify TABLE --sample 1`` repeats a cell of one table.

A table is found by its file's name, so a new one needs no entry here. Data sets from
files are looked for in ``$HPCFL_DATA``. A case is skipped if they are missing or if the
cell would take minutes. With another processor or another version of torch only
independent numbers are compared.
"""

import io
import lzma
import math
import shutil
import tarfile

import pytest
from places import ROOT

from hpcfl.api import run
from hpcfl.commands.verify import verify
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import sections
from hpcfl.experiment.plugins import find_own_names
from hpcfl.storage.packed_runs import SUFFIX, unpack
from hpcfl.trained import loading, packed

RESULTS = ROOT / "results"
FOLDERS = sorted({table.parent for table in RESULTS.rglob(f"*{SUFFIX}")})
LOOKED_AT = 3  # runs of a table; reading all of a thousand takes a minute
AT_MOST = 55_000  # samples of a run over all its rounds; more would take long


def some_runs(table, folder):
    """Unpack at most ``LOOKED_AT`` runs of a whole table, at equal distances from the
    first.
    """
    with tarfile.open(fileobj=io.BytesIO(lzma.open(table).read())) as archive:
        names = sorted({entry.name.partition("/")[0] for entry in archive})
        chosen = names[:: math.ceil(len(names) / LOOKED_AT)]
        for entry in filter(tarfile.TarInfo.isfile, archive):
            if entry.name.partition("/")[0] in chosen:
                place = folder / entry.name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.extractfile(entry).read())
    return [loading.load_run(folder / name) for name in chosen]


def samples(one):
    """Return the number of samples that a run trains on, each once per round."""
    return one.config["rounds"] * int(one.results.static["train_counts"].sum())


def keep_cheapest(tables, place):
    """Copy the cheapest of some runs of tables, all of which are finished, to
    ``place``.
    """
    found = []
    for table in tables:
        for one in some_runs(table, place.with_name(f"some of {table.name}")):
            assert one.summary.finished and one.results.header["processor"]
            found.append((samples(one), table, one))
    _, table, cheapest = min(found, key=lambda entry: entry[0])
    with unpack(table) as folder:
        shutil.copytree(folder / cheapest.folder.name, place)
    return cheapest


def check(folder, place, need_data, printed):
    """Check that the runs of a folder's tables are complete, and that the cheapest
    gives the stored results.
    """
    chosen = keep_cheapest(sorted(folder.glob(f"*{SUFFIX}")), place)
    if samples(chosen) > AT_MOST:
        pytest.skip(f"takes minutes: hpcfl verify {folder}/TABLE --sample 1")
    own = find_own_names(chosen.config)
    need_data(sections.Data(**{**chosen.config["data"], "root": None}))
    verify(place, 1, [], None, own, OneProcess())
    assert printed().splitlines()[-1].startswith(f"{place.name}: ")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a table of two runs, of which the second is cheaper."""
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


def test_the_cheapest_cell_is_repeated(made, tmp_path, need_data, printed):
    place = tmp_path / "cheapest"
    check(made.parent, place, need_data, printed)
    assert loading.load_run(place).config["rounds"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_cheapest_cell_of_published_tables_is_repeated(
    folder, monkeypatch, tmp_path, need_data, printed
):
    monkeypatch.chdir(tmp_path)
    for place in (folder, ROOT / "launch" / folder.name):
        monkeypatch.syspath_prepend(str(place))  # of modules that its runs name
    check(folder, tmp_path / "cheapest", need_data, printed)
