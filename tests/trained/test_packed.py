"""Runs in one file: tables do not change, and nothing else is read from an archive."""

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import folder
from playing import call
from recorded import sparse
from refusals import expect_refusal

from hpcfl.api import run
from hpcfl.report import figures, page, sweep_table, table_formats
from hpcfl.report.arrangement import arrange
from hpcfl.report.comparison import Reference
from hpcfl.report.metric_values import Reading, read_clients, read_value
from hpcfl.storage import results
from hpcfl.trained import loading, packed


@pytest.fixture
def runs(tmp_path):
    for seed in range(3):
        for method in ("fedavg", "local"):
            folder(tmp_path / "runs" / f"{method}-{seed}", method, seed)
    return tmp_path / "runs"


def tables(path):
    found, notes = loading.load_runs_below([path])
    assert notes == []
    readings = [Reading(at=at) for at in ("best", "last", "tail")]
    grids = [sweep_table.make(arrange(found), reading) for reading in readings]
    beside = sweep_table.compare(arrange(found), Reading(at="tail"), Reference("local"))
    return [table_formats.write_csv(table) for table in [*grids, *beside]]


@pytest.mark.slow
def test_tables_of_packed_runs_are_those_of_the_folders(runs, tmp_path):
    found, _ = loading.load_runs_below([runs])
    out = tmp_path / "table.tar.xz"
    (line,) = packed.write(found, out)
    assert line.startswith(f"6 runs in {out}")
    assert tables(out) == tables(runs)
    again = loading.list_runs(out)
    assert [run.label for run in again] == [run.label for run in found]
    assert again[0].folder == out / "fedavg-0" and again[0].notes == []
    with expect_refusal(r"table\.tar\.xz: .*own folder"):
        again[0].model(client=0)
    # the best round, and the last tenth of 12 rounds with the scoring after them
    assert len(again[0].results.rounds) <= 4


def test_a_run_keeps_its_name_where_its_folder_is_the_working_folder(
    runs, tmp_path, monkeypatch
):
    out = tmp_path / "x.tar.xz"
    (runs / "local-0" / "rounds").mkdir(exist_ok=True)
    for inside, named in (("local-0", "."), ("local-0/rounds", "..")):
        monkeypatch.chdir(runs / inside)
        packed.write(loading.list_runs(Path(named)), out)
        assert [run.label for run in loading.list_runs(out)] == ["local-0"]


def test_a_run_with_too_long_a_name_is_not_packed(runs, tmp_path):
    long = "l" * 200
    for above in ("a" * 100, "b" * 100):
        (tmp_path / above).mkdir()
        shutil.copytree(runs / "local-0", tmp_path / above / long)
    found = [loading.load_run(path) for path in tmp_path.glob(f"*/{long}")]
    with expect_refusal(rf"a/{long}: .*too long"):
        packed.write(found, tmp_path / "x.tar.xz")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("pack", "a.tar.xz"), ("report", "a.html")])
def test_a_full_disk_is_a_failure_that_leaves_no_file(
    runs, tmp_path, monkeypatch, printed_errors, arguments
):
    def fail(descriptor):
        raise OSError(errno.ENOSPC, "full")

    command, name = arguments
    out = tmp_path / "new" / name
    out.parent.mkdir()
    monkeypatch.setattr(os, "fsync", fail)
    assert call(command, runs, "--out", out) == 1
    assert name in printed_errors() and not list(out.parent.iterdir())


def test_the_note_on_diverged_clients_is_that_of_the_folder(runs, tmp_path):
    path = runs / "local-0" / results.MERGED
    found = results.load(path)
    diverged = np.zeros((len(found.rounds), 10))
    diverged[[2, 4, 6], [1, 3, 1]] = 1  # clients 1 and 3 in rounds 3, 5 and 7
    values = sparse({**found.values, "clients/diverged": diverged})
    path.write_bytes(results.encode(replace(found, values=values)))
    out = tmp_path / "x.tar.xz"
    packed.write(loading.list_runs(path.parent), out)
    notes = [
        loading.list_runs(place)[0].summary.notes[0].partition(": ")[2]
        for place in (path.parent, out)
    ]
    assert notes[0] == notes[1] and "2 of 10 clients in rounds 3 to 7" in notes[0]


def test_lost_rounds_of_a_packed_run_are_noted(runs, tmp_path):
    path = runs / "local-0" / results.MERGED
    whole = results.load(path)
    path.write_bytes(results.encode(whole.select_rounds([0, *range(2, 13)])))
    note, line = packed.write(loading.list_runs(path.parent), tmp_path / "x.tar.xz")
    assert note.startswith(f"{path.parent}: ") and "1 of 12 rounds" in note
    assert "x.tar.xz" in line


@pytest.mark.slow
def test_no_curve_is_drawn_of_the_few_rounds_of_packed_runs(runs, tmp_path):
    out = tmp_path / "table.tar.xz"
    packed.write(loading.list_runs(runs), out)
    with expect_refusal(r"tar\.xz/fedavg-0: .*own folder"):
        figures.plot([out], "curves", 5.0, tmp_path / "curves.png", {})
    figures.plot([out], "clients", 5.0, tmp_path / "clients.png", {})
    for path, count in ((runs, 1), (out, 0)):
        page.write([path], tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert text.count("<figure>") == count


@pytest.mark.slow
def test_costs_of_a_packed_run_are_unknown(runs, tmp_path):
    found = loading.list_runs(runs / "local-0")
    assert found[0].summary.floats_down is not None
    packed.write(found, tmp_path / "x.tar.xz")
    (again,) = loading.list_runs(tmp_path / "x.tar.xz")
    summary = again.summary
    costs = (summary.seconds_per_round, summary.floats_up, summary.floats_down)
    assert costs == (None, None, None)


def test_other_columns_are_read_where_they_end(tmp_path):
    """In 15 rounds trained models have a different last tenth: they are scored before
    the aggregation that gives FedAvg's model. The same holds for models after epochs of
    tuning.
    """
    played = run(
        {
            "rounds": 15,
            "partition": {"clients": 3},
            "model": {"hidden": [4]},
            "method": {"name": "fedavg"},
            "evaluation": {"tune_epochs": [1]},
        },
        out=tmp_path / "fedavg",
        progress=False,
    )
    out = tmp_path / "x.tar.xz"
    packed.write([played], out)
    (again,) = loading.list_runs(out)
    for metric in ("pre/weighted", "post/weighted"):
        for at in ("last", "tail"):
            there, here = (read_value(one, metric, at).value for one in (played, again))
            assert there == here, (metric, at)
    metric = f"tuned_1/{played.metric}"
    numbers = [read_clients(one, metric, "tail") for one in (played, again)]
    assert np.isfinite(numbers[1]).all() and np.array_equal(*numbers)


@pytest.mark.slow
def test_another_process_makes_the_same_file(runs, tmp_path):
    """The file does not depend on the order of the runs, the process's memory or the
    order of its sets.
    """
    here, there = tmp_path / "here.tar.xz", tmp_path / "there.tar.xz"
    packed.write(loading.list_runs(runs), here)
    code = (
        "import sys; from pathlib import Path; from hpcfl.trained import packed;"
        "from hpcfl.trained import loading;"
        "packed.write(loading.list_runs(Path(sys.argv[1]))[::-1], Path(sys.argv[2]))"
    )
    environment = {**os.environ, "MALLOC_PERTURB_": "85", "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", code, str(runs), str(there)]
    subprocess.run(command, env=environment, check=True)
    assert here.read_bytes() == there.read_bytes()


def test_no_folder_of_the_machine_is_in_it(tmp_path):
    header = {"command": ["/home/me/bin/hpcfl", "run", "/secret/x.toml"]}
    made = folder(tmp_path / "one", header=header, data={"root": str(tmp_path)})
    packed.write([loading.load_run(made)], tmp_path / "x.tar.xz")
    (run,) = loading.list_runs(tmp_path / "x.tar.xz")
    assert run.results.header["command"] == ["hpcfl", "run", "x.toml"]
    assert run.config["data"]["root"] is None
    assert run.results.header["config"]["data"]["root"] is None


def test_unfinished_or_duplicate_runs_are_not_packed(tmp_path):
    going = loading.load_run(folder(tmp_path / "going", finished=False))
    with expect_refusal("finished"):
        packed.write([going], tmp_path / "x.tar.xz")
    done = loading.load_run(folder(tmp_path / "done"))
    with expect_refusal(r"--out .*x\.zip: .*\.tar\.xz"):
        packed.write([done], tmp_path / "x.zip")
    (line, _) = packed.write([going, done], tmp_path / "x.tar.xz")
    assert line == "left out, not finished: 1 runs"
    with expect_refusal(r"0 done'"):
        packed.write([done, done], tmp_path / "x.tar.xz")


def test_a_huge_archive_is_refused(runs, tmp_path, monkeypatch):
    path = tmp_path / "x.tar.xz"
    packed.write(loading.load_runs_below([runs])[0], path)
    monkeypatch.setattr("hpcfl.storage.packed_runs.MOST_BYTES", 1000)
    with expect_refusal(r"x\.tar\.xz: "):
        loading.load_runs_below([path])
