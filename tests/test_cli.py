"""Real commands, each in a process or an MPI job."""

import gc
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import playing
import pytest

from hpcfl.cli import importing, plot
from hpcfl.commands import experiments
from hpcfl.errors import Interrupted
from hpcfl.experiment import plugins
from hpcfl.trained import loading

pytestmark = pytest.mark.slow  # needs the zygote, which takes seconds to start

SWEEP = """
name = "both"
rounds = 2
[partition]
scheme = "iid"
clients = 4
[model]
hidden = [8]
[sweep]
method.name = ["local", "fedavg"]
"""


@pytest.fixture
def call(zygote, tmp_path):
    """Return ``call("mpiexec -n 2 hpcfl …")``, which runs a command in an empty folder."""
    environment = {**os.environ, "PATH": zygote.path, "COLUMNS": "100"}

    def run(line: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            line.split(),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.mark.mpi
def test_a_sweep_over_mpi_ends_with_a_table_and_figures_and_is_not_repeated(
    call, tmp_path
):
    (tmp_path / "both.toml").write_text(SWEEP)
    first = call("mpiexec -n 3 hpcfl run both.toml")
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("▸") >= 2 and "both-fedavg: round 2/2" in first.stdout
    folder = tmp_path / "runs" / "both"
    assert {path.name for path in folder.iterdir()} >= {
        "local",
        "fedavg",
        "accuracy.png",
        "clients.png",
    }
    again = call("hpcfl run both.toml")
    assert again.stdout.count("complete in") == 2
    assert "of a later command" not in again.stdout

    shown = call("mpiexec -n 2 hpcfl show runs/both --json")
    summaries = json.loads(shown.stdout)
    assert shown.stderr == ""
    assert summaries["fedavg"]["finished"] and summaries["fedavg"]["rounds"] == 2
    assert summaries["fedavg"]["seconds_per_round"] > 0
    assert len(summaries["fedavg"]["digest"]) == 64
    assert (
        summaries["fedavg"]["floats_up"]
        == summaries["fedavg"]["floats_down"]
        == 64 * 8 + 8 + 8 * 10 + 10
    )
    assert summaries["local"]["floats_up"] == summaries["local"]["floats_down"] == 0


@pytest.mark.parametrize(
    "begun, again",
    [
        (True, "hpcfl run 'a b.toml' --out x"),
        (False, "hpcfl run 'a b.toml' --fresh --out x"),
    ],
)
def test_a_stopped_run_shows_the_command_that_continues_it(
    monkeypatch, printed_errors, begun, again
):
    def stopped(**given):
        raise Interrupted("stopped; the same command continues", begun)

    monkeypatch.setattr(experiments, "run_file", stopped)
    assert playing.call("run", "a b.toml", "--fresh", "--out", "x") == 75
    assert printed_errors().endswith(f": {again}\n")


@pytest.mark.mpi
def test_check_writes_nothing_and_shows_every_rank(call, tmp_path):
    (tmp_path / "both.toml").write_text(SWEEP)
    done = call("mpiexec -n 3 hpcfl check both.toml --set training.lr=0.25")
    assert done.returncode == 0, done.stderr
    assert "lr = 0.25" in done.stdout
    assert "2 valid cells" in done.stdout
    assert "610 parameters" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["both.toml"]


@pytest.mark.parametrize(
    "line, words",
    [
        ("hpcfl show nothing", "nothing: "),
        ("hpcfl show .", ".: "),
        pytest.param(
            "mpiexec -n 2 hpcfl run missing.toml",
            "missing.toml: ",
            marks=pytest.mark.mpi,
        ),
        ("hpcfl check wrong.toml", "training.lr"),
        ("hpcfl rnu both.toml", "'rnu'"),
        ("hpcfl table . --against local --margin nan", "--margin"),
        ("hpcfl plot . --width nan", "--width"),
        ("hpcfl table . --time-to=-inf", "--time-to"),
        (f"hpcfl check {'a' * 300}.toml", "255"),
        (f"hpcfl run both.toml --out {'a/' * 3000}", "4000"),
        (
            "hpcfl data dwnload mnist --root .",
            "'dwnload'",
        ),
        ("hpcfl data download minst --root .", "'mnist'"),
        ("hpcfl data download digits --root .", "'digits'"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(call, tmp_path, line, words):
    (tmp_path / "wrong.toml").write_text(
        'method = { name = "fedavg" }\ntraining = { lr = nan }'
    )
    failed = call(line)
    assert failed.returncode == 2
    assert failed.stdout == ""
    assert failed.stderr.startswith("hpcfl: ")
    assert failed.stderr.count("\n") == 1
    assert words in failed.stderr


@pytest.mark.parametrize(
    "line",
    [
        "show runs --json --bibtex",
        "show runs --json --explain",
        "methods --json --bibtex",
        "export runs --out models --client 3 --all",
        "table runs --at best --at-virtual 0",
    ],
)
def test_options_that_exclude_each_other_are_refused(hpcfl, line):
    code, _, error = hpcfl(*line.split(" "))
    assert code == 2
    assert sum(word in error for word in line.split(" ") if word[0] == "-") == 2


@pytest.fixture
def under_bash(zygote, tmp_path):
    """Return ``under_bash("hpcfl … > /dev/full")``, which returns the exit code of
    hpcfl.

    forked: Whether the process is forked from the zygote; a process without an open
    output cannot be forked.
    """

    def run(line: str, forked: bool = False) -> subprocess.CompletedProcess:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        if forked:
            environment["PATH"] = zygote.path
        else:
            line = line.replace("hpcfl", f"{shlex.quote(sys.executable)} -m hpcfl")
        return subprocess.run(
            ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


SINGLE = SWEEP.partition("[sweep]")[0] + "[method]\nname = 'local'\n"


@pytest.mark.parametrize(
    "where, why",
    [
        ("> /dev/full", "No space left on device"),
        (">&- 2>&-", "Bad file descriptor"),
        ("| true", "Broken pipe"),
    ],
)
def test_output_that_cannot_be_written_ends_no_run(under_bash, tmp_path, where, why):
    (tmp_path / "one.toml").write_text(SINGLE)
    line = f"hpcfl run one.toml --out run {where}"
    done = under_bash(line, forked=">&-" not in where)
    assert (done.returncode, done.stderr) == (0, "")
    assert why in (tmp_path / "run" / "output.txt").read_text()
    assert loading.load_run(tmp_path / "run").summary.finished


@pytest.mark.mpi
def test_a_full_output_of_ranks_ends_no_run(call, tmp_path):
    (tmp_path / "one.toml").write_text(SINGLE)
    (tmp_path / "full.sh").write_text("exec hpcfl run one.toml --out run > /dev/full")
    done = call("mpiexec -n 3 sh full.sh")
    assert done.returncode == 0, done.stderr
    assert "No space left" in (tmp_path / "run" / "output.txt").read_text()
    assert loading.load_run(tmp_path / "run").summary.finished


@pytest.mark.mpi
def test_a_script_may_continue_on_one_rank_alone(call, tmp_path):
    (tmp_path / "one.toml").write_text(SINGLE)
    (tmp_path / "script.py").write_text("""
import time
from mpi4py import MPI
import hpcfl
hpcfl.run("one.toml", out="run", progress=False)
if MPI.COMM_WORLD.rank == 0:
    time.sleep(0.5)
    print("wrote my own figure")
""")
    done = call("mpiexec -n 3 python script.py")
    assert (done.returncode, done.stdout) == (0, "wrote my own figure\n"), done.stderr


@pytest.mark.parametrize(
    "line, code, expected",
    [
        ("hpcfl run missing.toml 2>&-", 2, ""),
        ("hpcfl run missing.toml >&- 2>/dev/full", 2, ""),
        ("hpcfl methods | true", 141, ""),
        (
            "hpcfl methods > /dev/full",
            1,
            "hpcfl: standard output: No space left on device\n",
        ),
    ],
)
def test_the_exit_code_with_closed_or_full_output(under_bash, line, code, expected):
    done = under_bash(line)
    assert (done.returncode, done.stderr) == (code, expected)


def test_the_help_of_plot_names_every_kind():
    words = next(option.help for option in plot.params if option.name == "kind")
    assert all(
        kind.replace("_", "-") in words
        for kind in plugins.list_names("hpcfl.report.plots")
    )


def test_without_a_command_there_is_help(call):
    helped = call("hpcfl")
    assert helped.returncode == 0 and "\n  run  " in helped.stdout


def test_lists_are_json_alone(call):
    assert {"fedavg", "cwfedavg"} <= {
        method["name"] for method in json.loads(call("hpcfl methods --json").stdout)
    }
    assert "digits" in {
        dataset["name"] for dataset in json.loads(call("hpcfl datasets --json").stdout)
    }


def test_imported_objects_are_never_searched_for_garbage():
    frozen = gc.get_freeze_count()
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() > frozen
