"""gpu.sh at a hundredth of its size, on a CPU."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import gpu_hour
import gpu_play
import gpu_rows
import pytest
import table
import torch
from gpu_rows import Place, Row

from hpcfl.experiment.sections import Runtime

PROJECT = Path(__file__).parents[2]


pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def start(*command, env=None):
    """Run a command until its end and return it."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, env=env)


def contents(folder):
    """Return all files below a folder, with their time of change."""
    return {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a copy of all files that gpu.sh needs, into which no other test writes."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copy(PROJECT / "pyproject.toml", folder)
    for name in ("hpcfl", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
        shutil.copytree(PROJECT / name, folder / name, ignore=ignored)
    return folder


@pytest.mark.slow
@pytest.mark.mpi
def test_the_script_runs_every_row_and_leaves_the_checkout_unchanged(
    checkout, tmp_path
):
    out, before = tmp_path / "out", contents(checkout)
    script = checkout / "tests" / "benchmarks" / "gpu.sh"
    words = [
        "bash",
        script,
        "--python",
        sys.executable,
        "--out",
        out,
        "--device",
        "cpu",
    ]
    without_network = (
        ["unshare", "-n"] if start("unshare", "-n", "true").returncode == 0 else []
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    ended = start(*without_network, *words, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert contents(checkout) == before
    files = sorted(path.name for path in out.iterdir())
    assert files == ["gpu.json", "gpu.md", "lanes.json", "log.txt"]
    rows = json.loads((out / "gpu.json").read_text())["rows"]
    assert list(rows) == [row.name for row in gpu_rows.list_rows()]
    page = (out / "gpu.md").read_text()
    for name, row in rows.items():
        installed = row["title"] != "pfl research" or importlib.util.find_spec("pfl")
        assert row["status"] == ("ok" if installed else "missing"), (name, row)
        assert bool(row["lines"]) == bool(installed) and name in page
    runtime = Runtime(lane_table=str(out / "lanes.json"))  # as a run does
    lanes = runtime.lane_table.rows
    measured = {(row.model, row.precision, row.lanes, row.form) for row in lanes}
    # bf16 has no loop on a CPU, and the mlp no convolution
    grouped, loop = 4 * 3 * 2, 3 * 2
    assert len(measured) == len(lanes) == grouped + loop
    assert [line["ranks"] for line in rows["two ranks"]["lines"]] == [1, 3]
    published = table.read_gpu(out / "gpu.json")
    targets = [aim for aim in table.TARGETS if aim.what.startswith("one GPU")]
    unknown = {aim.row for aim in targets if aim.value(published) is None}
    assert len(targets) > 4 and unknown <= {"GPU pfl research"}


def short(place):
    yield {"found": 1}


def broken(place):
    yield {"found": 2}
    raise ValueError("no such number")


def endless(place):
    yield {"found": 3}
    time.sleep(600)


def absent(place):
    raise gpu_rows.Missing("type: pip install it")
    yield


@pytest.mark.slow
def test_a_row_that_fails_or_takes_too_long_is_recorded_and_the_next_follows(tmp_path):
    place = Place(tmp_path, "cpu", is_small=True)
    place.work.mkdir()
    rows = [Row(short, 1, 1), Row(broken, 1, 1), Row(endless, 0.4, 1)]
    rows += [Row(absent, 1, 1), Row(short, 600, 2, {"place": "left out"})]
    machine = {"device": "none", "torch": "0"}
    gpu_play.play_rows(rows, place, time.monotonic() + 60, machine)
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    outcomes = [(row["status"], row["lines"]) for row in rows.values()]
    assert outcomes == [
        ("ok", [{"found": 1}]),
        ("failed", [{"found": 2}]),
        ("out of time", [{"found": 3}]),
        ("missing", []),
        ("left out", []),
    ]
    assert rows["endless"]["seconds"] < 30
    page = (tmp_path / "gpu.md").read_text()
    assert "ValueError: no such number" in page and "pip install it" in page


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_reported_in_one_line(tmp_path, capsys):
    (tmp_path / "work").mkdir()
    assert gpu_hour.play(tmp_path, "cuda", time.monotonic()) == 2
    captured = capsys.readouterr()
    assert "GPU" in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_missing_packages_are_listed_with_the_install_command(
    tmp_path, monkeypatch, printed_errors
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "h5py" else find(name)
    )
    assert gpu_hour.main(["--out", str(tmp_path / "out")]) == 2
    error = printed_errors()
    assert "-m pip install 'h5py>=" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "seen"), [(None, "0"), ("3,5", "3"), ("MIG-a,MIG-b", "MIG-a"), ("", "")]
)
def test_all_rows_see_the_first_gpu_of_a_job(given, seen, monkeypatch):
    environment = {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
    monkeypatch.setattr(os, "environ", environment)
    gpu_hour.choose_gpu()
    assert environment["CUDA_VISIBLE_DEVICES"] == seen


def test_the_output_cannot_be_in_the_checkout():
    out, script = PROJECT / "tests" / "out", Path(__file__).with_name("gpu.sh")
    ended = start("bash", script, "--python", sys.executable, "--out", out)
    assert ended.returncode == 2 and str(out) in ended.stderr


def test_the_least_important_rows_are_left_out_where_time_is_short():
    rows = [
        Row(gpu_rows.lanes, 10, 2, {"model": "a"}),
        Row(gpu_rows.memory, 20, 1),
        Row(gpu_rows.lanes, 10, 2, {"model": "b"}),
        Row(gpu_rows.tests, 30, 3),
    ]
    assert gpu_play.choose_rows(rows, 70) == rows
    assert gpu_play.choose_rows(rows, 69) == rows[:3]
    assert gpu_play.choose_rows(rows, 39) == rows[:2]
    assert gpu_play.choose_rows(rows, 20) == [rows[1]]
    assert gpu_play.choose_rows(rows, 19) == []


def test_all_rows_fit_an_hour():
    rows = gpu_rows.list_rows()
    assert gpu_play.choose_rows(rows, 3600) == rows


def test_a_row_without_enough_memory_is_not_in_the_table_of_lanes():
    line = dict.fromkeys(gpu_play.OF_LANES, 1)
    found = gpu_play.Result("lanes", "ok", lines=[line, {**line, "fitting": 4}])
    assert gpu_play.find_lanes([found]) == [line]
