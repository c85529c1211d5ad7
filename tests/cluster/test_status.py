"""States of cells, from folders of runs and a given queue."""

import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from playing import run_table
from refusals import expect_refusal

from hpcfl.cluster import slurm, status
from hpcfl.cluster.slurm import Queued
from hpcfl.commands.run import run
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import RunFailure
from hpcfl.experiment.config import parse
from hpcfl.experiment.experiment_file import fingerprint
from hpcfl.files import output
from hpcfl.storage import manifest, results
from hpcfl.storage.lock import FolderLock
from hpcfl.storage.metrics import ResultsWriter

TABLE = {
    "rounds": 2,
    "name": "s",
    "data": {"dataset": "tiny:blobs"},
    "model": {"name": "mlp", "hidden": [4]},
    "partition": {
        "scheme": "tiny:Counts",
        "clients": 2,
        "counts": [[5, 5, 0, 0], [0, 0, 5, 5]],
    },
    "method": {"name": "fedavg"},
    "training": {"lr": 0.1},
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return a sweep of two seeds; seed 0 is finished, seed 1 was not started."""
    folder = tmp_path_factory.mktemp("begun")
    run(parse(TABLE | {"seed": 0}), folder / "seed=0", OneProcess())
    (folder / "sweep.json").write_text(json.dumps(["seed=0", "seed=1"]))
    return folder


@pytest.fixture
def sweep(begun, tmp_path):
    """Return a copy of the sweep."""
    return Path(shutil.copytree(begun, tmp_path / "out"))


@pytest.fixture
def queue(sweep, monkeypatch):
    """Return ``queue(state, reason, restarts)``, which sets Slurm's report about the
    job of seed 1.
    """

    def put(*queued):
        (sweep / "jobs").mkdir(exist_ok=True)
        (sweep / "jobs" / "submitted.json").write_text(json.dumps({"seed=1": "5_1"}))
        monkeypatch.setattr(
            slurm,
            "find_jobs",
            lambda ids: {"5_1": Queued(*queued)} if "5_1" in ids else {},
        )

    return put


def states(folder):
    return [(cell.name, cell.state, cell.note) for cell in status.list_statuses(folder)]


@pytest.mark.slow
def test_status_reports_finished_and_waiting_cells(sweep):
    assert states(sweep) == [("seed=0", "finished", ""), ("seed=1", "waiting", "")]
    done = status.list_statuses(sweep)[0]
    assert (done.round, done.rounds) == (2, 2)
    assert 0 < float(done.reached.removesuffix(" %")) <= 100
    assert done.left is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queued", "state", "note"),
    [
        (("PENDING", "Resources", 0), "queued", "Resources"),
        (("PENDING", "BeginTime", 2), "queued", "requeued 2 times, BeginTime"),
        (("RUNNING", "None", 0), "starting", ""),
        (("COMPLETED", "None", 0), "waiting", ""),
        (("CANCELLED", "None", 0), "waiting", ""),
        (
            ("OUT_OF_MEMORY", "OutOfMemory", 0),
            "failed",
            "Slurm reports only OUT_OF_MEMORY; see the log in {}/jobs",
        ),
    ],
)
def test_jobs_in_the_queue(sweep, queue, queued, state, note):
    queue(*queued)
    assert states(sweep)[1] == ("seed=1", state, note.format(sweep))


def test_cells_are_unknown_while_squeue_fails(sweep, queue, monkeypatch):
    queue("PENDING", "Resources", 0)
    monkeypatch.setattr(slurm, "find_jobs", lambda ids: None)
    assert [state for _, state, _ in states(sweep)] == ["finished", "unknown"]
    shutil.copytree(sweep / "seed=0", sweep / "seed=1")
    assert [state for _, state, _ in states(sweep)] == ["finished", "finished"]


def test_status_shows_the_follow_up_job_of_a_cell(sweep, queue, monkeypatch):
    queue("FAILED", "NonZeroExitCode", 0)
    (sweep / "jobs" / "seed=1.requeues").write_text(
        json.dumps({"failure": None, "followers": {"5_1": "8", "8": "9"}})
    )
    monkeypatch.setattr(
        slurm,
        "find_jobs",
        lambda ids: {"9": Queued("PENDING", "Dependency", 0)} if "9" in ids else {},
    )
    assert states(sweep)[1] == ("seed=1", "queued", "Dependency")


def test_running_while_its_folder_is_locked(sweep, queue):
    queue("RUNNING", "None", 1)
    (sweep / "seed=1").mkdir()
    with FolderLock(sweep / "seed=1"):
        assert states(sweep)[1] == ("seed=1", "starting", "requeued 1 time")
        described = (sweep / "seed=0" / "run.json").read_bytes()
        (sweep / "seed=1" / "run.json").write_bytes(described)
        header = {"run": fingerprint(json.loads(described)["config"])}
        ResultsWriter(sweep / "seed=1", header, {}).record(1, {"final": 0})
        assert states(sweep)[1] == ("seed=1", "running", "requeued 1 time")
    assert states(sweep)[1][1] == "running"  # according to the queue


@pytest.mark.slow
def test_failed_with_the_reason_of_the_run(sweep):
    diverges = parse(TABLE | {"seed": 1, "method": {"name": "tiny:Diverges"}})
    with pytest.raises(RunFailure):
        run(diverges, sweep / "seed=1", OneProcess())
    _, failed = status.list_statuses(sweep)
    assert failed.state == "failed"
    assert "round 2: client 1 " in failed.note
    assert failed.round == 1


def test_failed_with_the_reason_of_the_supervisor(sweep, queue):
    queue("FAILED", "NonZeroExitCode", 0)
    (sweep / "jobs" / "seed=1.requeues").write_text(
        json.dumps({"failure": "the ranks ended with code 137"})
    )
    assert states(sweep)[1] == ("seed=1", "failed", "the ranks ended with code 137")


@pytest.mark.slow
def test_stopped_in_the_middle(sweep):
    run(parse(TABLE | {"seed": 1}), sweep / "seed=1", OneProcess())
    path = sweep / "seed=1" / "run.json"
    path.write_text(path.read_text().replace('"rounds": 2', '"rounds": 20'))
    (sweep / "seed=1" / "metrics.h5").unlink()
    assert states(sweep)[1] == ("seed=1", "stopped", "the same command continues")


@pytest.mark.slow
def test_the_round_from_which_a_killed_run_continues(sweep, printed):
    """Both rounds are recorded, and the checkpoint of the second one is missing.

    A finished run may have none.
    """
    shutil.rmtree(sweep / "seed=0" / "checkpoints")
    every = {"checkpoint": {"every": 1}}
    folder = sweep / "seed=1"
    run(parse(TABLE | {"seed": 1} | every), folder, OneProcess())
    manifest.list_newest_first(folder / "checkpoints")[0].unlink()
    status.show(sweep, watch=False)
    shown = printed()
    assert "2/2, saved 1 " in shown and "saved 0" not in shown
    with FolderLock(folder):
        status.show(sweep, watch=False)
    assert "saved" not in printed()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "argv", "job", "printed"),
    [
        (
            1,
            ["/usr/bin/hpcfl", "run", "my file.toml"],
            False,
            "hpcfl run 'my file.toml'",
        ),
        (
            3,
            ["hpcfl", "run", "f.toml", "--fresh", "--set", "seed=1"],
            False,
            "mpiexec -n 3 hpcfl run f.toml --set seed=1",
        ),
        (3, ["hpcfl", "run", "f.toml"], True, None),
        (1, ["study.py"], False, None),
    ],
)
def test_a_stopped_run_shows_the_command_that_continues_it(
    sweep, queue, monkeypatch, capsys, ranks, argv, job, printed
):
    """This does not apply to a run in a job, because Slurm started its ranks."""
    if job:
        queue("CANCELLED", "None", 0)
    folder = sweep / "seed=1"
    monkeypatch.setattr("sys.argv", argv)
    run(parse(TABLE | {"seed": 1}), folder, OneProcess())
    found = results.read(folder)
    found.header["ranks"] = ranks
    (folder / "metrics.h5").write_bytes(results.encode(found))
    config = folder / "run.json"
    config.write_text(config.read_text().replace('"rounds": 2', '"rounds": 20'))

    status.show(sweep, watch=False)

    lines = capsys.readouterr().out.splitlines()
    advice = [line for line in lines if line.startswith("continue")]
    assert len(advice) == (printed is not None)
    assert all(line.endswith(f": {printed}") for line in advice)


def test_a_single_run_and_a_folder_without_any(sweep, tmp_path):
    assert states(sweep / "seed=0") == [("seed=0", "finished", "")]
    with expect_refusal("seed=0/checkpoints: "):
        status.list_statuses(tmp_path / "out" / "seed=0" / "checkpoints")
    with expect_refusal("nowhere: "):
        status.list_statuses(tmp_path / "nowhere")


def test_only_the_first_of_many_cells_are_shown(sweep, monkeypatch, printed):
    monkeypatch.setattr(status, "MOST_ROWS", 1)
    status.show(sweep, watch=False)
    shown = printed()
    assert "… and 1 more\n1 finished, 1 waiting" in shown and "seed=1" not in shown


def test_watching_ends_when_the_output_is_closed(sweep, queue, monkeypatch):
    queue("RUNNING", "None", 0)
    monkeypatch.setattr(output, "find_failure", lambda: OSError(errno.EPIPE, "gone"))
    status.show(sweep, watch=True)


@pytest.mark.slow
def test_watching_while_a_job_runs(sweep, queue, monkeypatch, printed):
    """The job finishes between two checks."""
    queue("RUNNING", "None", 0)

    def finish(seconds):
        run(parse(TABLE | {"seed": 1}), sweep / "seed=1", OneProcess())

    monkeypatch.setattr(status, "time", SimpleNamespace(sleep=finish))
    status.show(sweep, watch=True)
    assert printed().endswith("\n2 finished\n")


@pytest.mark.slow
def test_a_sweep_continues_after_a_failed_cell(tmp_path, printed):
    """The third cell runs although the second diverges. The next command repeats only
    the second.
    """
    table = {**TABLE, "sweep": {"method.name": ["fedavg", "tiny:Diverges", "local"]}}
    for _ in range(2):
        expected = "^1 of 3 .* tiny_Diverges: round 2: client 1 "
        with pytest.raises(RunFailure, match=expected):
            run_table(table, tmp_path / "out")
        assert [cell.state for cell in status.list_statuses(tmp_path / "out")] == [
            "finished",
            "failed",
            "finished",
        ]
    assert printed().count("complete in") == 2
