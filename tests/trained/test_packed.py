"""Runs in one file: tables are the same, and nothing else is read from an archive."""

import gzip
import io
import lzma
import os
import random
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from made_up import folder

from hpcfl import cli
from hpcfl.api import run
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.report import figures, page, sweep_table, table_formats
from hpcfl.report.comparison import Reference
from hpcfl.report.metric_values import of_clients, value
from hpcfl.report.sweep_table import Reading
from hpcfl.trained import loading, packed


@pytest.fixture
def runs(tmp_path):
    for seed in range(3):
        for method in ("fedavg", "local"):
            folder(tmp_path / "runs" / f"{method}-{seed}", method, seed)
    return tmp_path / "runs"


def tables(path):
    found, notes = loading.runs_below([path])
    assert notes == []
    readings = [Reading(at=at) for at in ("best", "last", "tail")]
    grids = [sweep_table.make(found, reading=reading) for reading in readings]
    beside = sweep_table.compare(found, (), (), Reading(at="tail"), Reference("local"))
    return [table_formats.long_csv(table) for table in [*grids, *beside]]


@pytest.mark.slow
def test_tables_of_packed_runs_are_those_of_the_folders(runs, tmp_path):
    found, _ = loading.runs_below([runs])
    out = tmp_path / "table.tar.xz"
    (line,) = packed.write(found, out)
    assert line.startswith(f"6 runs in {out}")
    assert tables(out) == tables(runs)
    again = loading.list_runs(out)
    assert [run.label for run in again] == [run.label for run in found]
    assert again[0].folder == out / "fedavg-0" and again[0].notes == []
    # the best round, and the last tenth of 12 rounds with the scoring after them
    assert len(again[0].results.rounds) <= 4


@pytest.mark.slow
def test_no_curve_is_drawn_of_the_few_rounds_of_packed_runs(runs, tmp_path):
    out = tmp_path / "table.tar.xz"
    packed.write(loading.list_runs(runs), out)
    with pytest.raises(
        UserError, match="a packed file has the best and the last rounds"
    ):
        figures.plot([out], "curves", 5.0, tmp_path / "curves.png", {})
    figures.plot([out], "clients", 5.0, tmp_path / "clients.png", {})
    for path, count in ((runs, 1), (out, 0)):
        page.write([path], tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert text.count("<figure>") == count


@pytest.mark.slow
def test_other_columns_are_read_where_they_end(tmp_path):
    """Of 15 rounds trained models have a last tenth of their own: they are scored before
    the aggregation that FedAvg's own models come from.
    """
    played = run(
        {
            "rounds": 15,
            "partition": {"clients": 3},
            "model": {"hidden": [4]},
            "method": {"name": "fedavg"},
        },
        out=tmp_path / "fedavg",
        progress=False,
    )
    out = tmp_path / "x.tar.xz"
    packed.write([played], out)
    (again,) = loading.list_runs(out)
    for metric in ("pre/weighted", "post/weighted"):
        for at in ("last", "tail"):
            there, here = (value(one, metric, at).value for one in (played, again))
            assert there == here, (metric, at)


@pytest.mark.slow
def test_the_same_runs_make_the_same_file(runs, tmp_path):
    found, _ = loading.runs_below([runs])
    packed.write(found, tmp_path / "a.tar.xz")
    packed.write(found[::-1], tmp_path / "b.tar.xz")
    assert (tmp_path / "a.tar.xz").read_bytes() == (tmp_path / "b.tar.xz").read_bytes()


@pytest.mark.slow
def test_other_processes_make_the_same_file(tmp_path):
    """Whatever lies in their memory, and in whatever order their sets are."""
    made = folder(tmp_path / "one")
    code = (
        "import sys; from pathlib import Path; from hpcfl.trained import packed;"
        "from hpcfl.trained import loading;"
        "packed.write([loading.load_run(Path(sys.argv[1]))], Path(sys.argv[2]))"
    )
    files = []
    for number in range(3):
        out = tmp_path / f"{number}.tar.xz"
        environment = {
            **os.environ,
            "MALLOC_PERTURB_": str(85 * number),
            "PYTHONHASHSEED": str(number),
        }
        command = [sys.executable, "-c", code, str(made), str(out)]
        subprocess.run(command, env=environment, check=True)
        files.append(out.read_bytes())
    assert files[0] == files[1] == files[2]


def test_no_folder_of_the_machine_is_in_it(tmp_path):
    header = {"command": ["/home/me/bin/hpcfl", "run", "/secret/x.toml"]}
    made = folder(tmp_path / "one", header=header, data={"root": str(tmp_path)})
    packed.write([loading.load_run(made)], tmp_path / "x.tar.xz")
    (run,) = loading.list_runs(tmp_path / "x.tar.xz")
    assert run.results.header["command"] == ["hpcfl", "run", "x.toml"]
    assert run.config["data"]["root"] is None
    assert run.results.header["config"]["data"]["root"] is None


def test_what_cannot_be_packed(tmp_path):
    going = loading.load_run(folder(tmp_path / "going", finished=False))
    with pytest.raises(UserError, match="no run is finished"):
        packed.write([going], tmp_path / "x.tar.xz")
    done = loading.load_run(folder(tmp_path / "done"))
    with pytest.raises(UserError, match=r"must end with .tar.xz"):
        packed.write([done], tmp_path / "x.zip")
    (line, _) = packed.write([going, done], tmp_path / "x.tar.xz")
    assert line == "left out, not finished: 1 runs"
    with pytest.raises(UserError, match="two runs are called"):
        packed.write([done, done], tmp_path / "x.tar.xz")


def test_a_huge_archive_is_refused(runs, tmp_path, monkeypatch):
    path = tmp_path / "x.tar.xz"
    packed.write(loading.runs_below([runs])[0], path)
    monkeypatch.setattr("hpcfl.storage.packed_runs.MOST_BYTES", 1000)
    with pytest.raises(UserError, match="more than packed runs may"):
        loading.runs_below([path])


def as_archive(*members):
    """The bytes of an archive of members (name, content, type)."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as archive:
        for name, data, kind in members:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def forged(size, kind=tarfile.REGTYPE):
    """An archive whose one header states a size, 12 bytes."""
    entry = tarfile.TarInfo("a/run.json")
    entry.type = kind
    header = bytearray(entry.tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return lzma.compress(bytes(header) + b"{}".ljust(512, b"\0"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The bytes of an archive of one run, and its members."""
    place = tmp_path_factory.mktemp("archive")
    packed.write([loading.load_run(folder(place / "one"))], place / "x.tar.xz")
    with tarfile.open(place / "x.tar.xz") as read:
        members = [
            (entry.name, read.extractfile(entry).read(), entry.type) for entry in read
        ]
    return (place / "x.tar.xz").read_bytes(), members


HOSTILE = {
    "empty": lambda whole, members: as_archive(),
    "nothing": lambda whole, members: b"",
    "text": lambda whole, members: b"no archive",
    "gzip": lambda whole, members: gzip.compress(whole),
    "plain": lambda whole, members: lzma.decompress(whole),
    "cut": lambda whole, members: whole[:-40],
    "cut in the end": lambda whole, members: whole[:-1],
    "twice": lambda whole, members: whole + whole,
    "duplicate": lambda whole, members: as_archive(*members, members[0]),
    "no metrics": lambda whole, members: as_archive(members[0]),
    "no run.json": lambda whole, members: as_archive(members[1]),
    "other metrics": lambda whole, members: as_archive(
        members[0], (members[1][0], b"x" * 999, members[1][2])
    ),
    "long name": lambda whole, members: as_archive(
        ("x" * 300 + "/run.json", b"{}", tarfile.REGTYPE)
    ),
    "longer name": lambda whole, members: as_archive(
        ("x" * 99_999 + "/run.json", b"{}", tarfile.REGTYPE)
    ),
    "negative size": lambda whole, members: forged(b"\xff" * 12),
    "huge size": lambda whole, members: forged(b"\x80" + b"\x7f" * 11),
    "huge header": lambda whole, members: forged(b"07777777777\0", tarfile.XHDTYPE),
    "above": lambda whole, members: as_archive(("../run.json", b"{}", tarfile.REGTYPE)),
    "at the root": lambda whole, members: as_archive(
        ("/x/run.json", b"{}", tarfile.REGTYPE)
    ),
    "code": lambda whole, members: as_archive(("x/evil.py", b"{}", tarfile.REGTYPE)),
    "deep": lambda whole, members: as_archive(("x/y/run.json", b"{}", tarfile.REGTYPE)),
    "link": lambda whole, members: as_archive(("x/run.json", b"", tarfile.SYMTYPE)),
    "folder": lambda whole, members: as_archive(("x", b"", tarfile.DIRTYPE)),
    "zeros": lambda whole, members: lzma.compress(bytes(1 << 24)),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("command", ["table", "verify"])
def test_a_hostile_archive_is_one_line(tmp_path, capsys, archive, kind, command):
    path = tmp_path / "x.tar.xz"
    path.write_bytes(HOSTILE[kind](*archive))
    assert cli.command([command, str(path)], OneProcess()) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert f"{path}: cannot be read as packed runs" in said.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tar.xz"]


def test_flipped_bits_are_refused(tmp_path, archive):
    path = tmp_path / "x.tar.xz"
    whole, _ = archive
    for place in random.Random(7).sample(range(len(whole)), 100):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(UserError, match="cannot be read as packed runs"):
            loading.runs_below([path])


@pytest.mark.slow
def test_clients_numbers_after_epochs_of_tuning_are_kept(tmp_path):
    table = {
        "rounds": 2,
        "partition": {"clients": 3},
        "model": {"hidden": [4]},
        "method": {"name": "fedavg"},
        "evaluation": {"tune_epochs": [1]},
    }
    made = run(table, out=tmp_path / "run", progress=False)
    packed.write([made], tmp_path / "x.tar.xz")
    (again,) = loading.list_runs(tmp_path / "x.tar.xz")
    numbers = [of_clients(one, "tuned_1", one.measure, "tail") for one in (made, again)]
    assert np.isfinite(numbers[1]).all() and np.array_equal(*numbers)
