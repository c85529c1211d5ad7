"""Submission without Slurm: profiles that run here, printed lines, and files in the
folder.
"""

import json
import os
import shlex
from types import SimpleNamespace

import pytest
from refusals import expect_refusal

from hpcfl.cluster import profile, slurm, submission
from hpcfl.cluster.submission import submit
from hpcfl.errors import RunFailure
from hpcfl.experiment import config
from hpcfl.storage import run_folder

EXPERIMENT = """
name = "t"
rounds = 2
[data]
dataset = "digits"
[partition]
clients = 2
[model]
name = "mlp"
hidden = [4]
[method]
name = "fedavg"
[sweep]
seed = [0, 1]
"""


@pytest.fixture
def here(make_place):
    """Make the current folder with an experiment file and the profiles ``local``,
    ``debug`` and ``slurm``.
    """
    profiles = {
        "local": 'cluster = "local"',
        "debug": 'cluster = "debug"',
        "slurm": "nodes = 2",
    }
    return make_place("e.toml", EXPERIMENT, profiles)


@pytest.fixture
def forked(zygote, monkeypatch):
    """Fork ranks from the zygote, but not submitit's processes, whose ids it must know."""
    monkeypatch.setenv("PATH", zygote.path)
    monkeypatch.setattr(profile, "sys", SimpleNamespace(executable=str(zygote.python)))


def send(here, name, *overrides, out="out", dry_run=False):
    return list(submit(here / "e.toml", overrides, name, here / out, dry_run))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "debug"])
def test_the_same_without_slurm(forked, here, name):
    assert send(here, name) == ["seed=0: finished", "seed=1: finished"]
    assert (here / "out" / "seed=1" / "metrics.h5").exists()
    assert send(here, name) == ["2 of 2 complete"]
    assert send(here, name, "sweep.seed=[0, 1, 2]") == [
        "2 of 3 complete",
        "seed=2: finished",
    ]


@pytest.mark.parametrize(
    ("time", "minutes"),
    [
        ("unlimited", submission.MOST_MINUTES),
        ("0", submission.MOST_MINUTES),
        ("0:30", 1),
        ("90", 90),
    ],
)
def test_the_time_limit_without_slurm(here, monkeypatch, time, minutes):
    limits = []

    class Executor:
        def __init__(self, folder):
            pass

        def update_parameters(self, timeout_min):
            limits.append(timeout_min)

        def submit(self, supervisor):
            return SimpleNamespace(result=lambda: None)

    monkeypatch.setattr(submission.submitit, "LocalExecutor", Executor)
    file = here / "own.toml"
    file.write_text(f'cluster = "local"\ntime = "{time}"\n')
    send(here, str(file), "sweep.seed=[0]")
    assert limits == [minutes]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "output"),
    [
        (
            "local",
            "the ranks ended with code 1: {}; a new submission continues from round 0",
        ),
        ("debug", "{}"),
    ],
)
def test_a_failing_cell_does_not_stop_the_others(forked, here, name, output):
    changes = ["sweep.seed=[0]", "sweep.training.lr=[1e38, 0.1]"]
    lines = submit(here / "e.toml", changes, name, here / "out", dry_run=False)
    first, second = next(lines), next(lines)
    diverged = (
        "round 1: clients 0, 1 diverged (NaN or Inf); lower training.lr or set training.clip and "
        "start over with --fresh, or exclude such clients with training.on_divergence = 'exclude'"
    )
    assert first == f"seed=0,lr=1e+38: failed, {output.format(diverged)}"
    assert second == "seed=0,lr=0.1: finished"
    with pytest.raises(RunFailure, match=r"^1 of 2 "):
        next(lines)


@pytest.mark.slow
def test_refused_cells_are_not_submitted(here):
    (here / "out").mkdir()
    (here / "out" / "seed=0").write_text("in the way")
    lines = submit(here / "e.toml", [], "debug", here / "out", dry_run=False)
    refused, finished = next(lines), next(lines)
    assert refused.startswith("seed=0: not submitted, ") and refused.endswith(" --out")
    assert finished == "seed=1: finished"
    with pytest.raises(RunFailure, match=r"^1 of 2 "):
        next(lines)
    with expect_refusal(rf"^{here}/out/seed=0: .* --out$"):
        send(here, "debug", "sweep.seed=[0]")


def test_a_folder_of_another_configuration_is_not_moved_by_a_submission(here):
    other = config.parse({"method": {"name": "fedavg"}}).resolved()
    (here / "out" / "seed=0").mkdir(parents=True)
    (here / "out" / "seed=0" / "run.json").write_bytes(run_folder.encode_run(other))
    with expect_refusal(r"/seed=0: .*hpcfl submit has no --fresh"):
        send(here, "debug", "sweep.seed=[0]")


def test_a_dry_run_shows_the_script_and_writes_nothing(here, printed):
    text, launch, *_ = send(here, "slurm", out="two words; it's", dry_run=True)
    assert "#SBATCH --nodes=2" in text and "#SBATCH --array=0-1%2" in text
    last = text.strip().splitlines()[-1]
    assert shlex.split(last)[-1] == str(here / "two words; it's" / "jobs")
    assert last.startswith("exec ")
    output = printed()
    table = output[output.index("memory") :].splitlines()
    assert [line.split()[0] for line in table[2:6]] == ["0", "1", "2", "3"]
    assert not (here / "two words; it's").exists()
    words = shlex.split(launch.splitlines()[-1])
    assert words[:2] == ["srun", "--mpi=pmi2"]
    assert words[-1] == str(here / "two words; it's" / "seed=0")


def test_a_dry_run_without_slurm_shows_the_start_of_the_ranks(here):
    (launch,) = send(here, "local", dry_run=True)
    assert "mpiexec -n 2 " in launch


def test_a_dry_run_of_a_complete_sweep_suggests_out(here, monkeypatch):
    monkeypatch.setattr(submission, "_find_open", lambda plan: ({}, {}))
    (line,) = send(here, "slurm", dry_run=True)
    assert line.startswith("2 of 2 complete") and "--out" in line


@pytest.mark.parametrize(
    ("seeds", "setup"), [("[0]", ""), ("[0, 1]", "setup = ['conda activate fl']")]
)
def test_a_dry_run_shows_the_script_that_submitit_sends(
    here, monkeypatch, seeds, setup
):
    """Slurm's programs are replaced: submitit stores the script of job 12."""
    (here / "slurm" / "profiles" / "slurm.toml").write_text(f"nodes = 2\n{setup}")
    programs = {"srun": "true", "squeue": "true", "sbatch": "echo Submitted job 12"}
    for name, command in programs.items():
        (here / name).write_text(f"#!/bin/bash\n{command}\n")
        (here / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}{os.pathsep}{os.environ['PATH']}")
    overrides = (f"sweep.seed={seeds}",)
    shown, launch, *_ = send(here, "slurm", *overrides, out="two words", dry_run=True)
    send(here, "slurm", *overrides, out="two words")
    sent = (here / "two words" / "jobs" / "12_submission.sh").read_text()
    for text in (shown, sent):
        assert text.startswith("#!/bin/bash\n")
    options, commands = split_script(sent)
    assert (options, commands) == split_script(shown)
    names = [option.partition("=")[0] for option in options]
    assert sorted(set(names)) == names and "--wckey" not in names
    assert (["set", "-e"] in commands) == bool(setup)
    # the environment that setup activates has its own interpreter
    assert ("python" in commands[-1]) == (" python -u" in launch) == bool(setup)


def split_script(text):
    """Return the sorted options of a batch script, and its commands."""
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    options = sorted(
        " ".join(shlex.split(line.removeprefix("#SBATCH")))
        for line in lines
        if "#SBATCH" in line
    )
    return options, [shlex.split(line) for line in lines if not line.startswith("#")]


@pytest.mark.slow
def test_configurations_are_frozen(here):
    send(here, "debug", "rounds=1")
    frozen = json.loads((here / "out" / "jobs" / "seed=1.json").read_text())
    assert (frozen["rounds"], frozen["seed"], frozen["name"]) == (1, 1, "t-seed=1")
    script = (here / "out" / "jobs" / "seed=1.sbatch").read_text()
    assert (
        script.startswith("#!/bin/bash\n#SBATCH --job-name=t-seed=1\n")
        and "hpcfl.cluster.supervisor" in script
    )


@pytest.mark.parametrize(
    ("name", "overrides", "out", "complaint"),
    [
        (
            "slurm",
            ("runtime.threads=4",),
            "out",
            "runtime.threads = 4 .* cores = 1",
        ),
        ("slurm", ("method.name='fedavgg'",), "out", "'fedavgg' .*'fedavg'"),
        ("slurm", (), "new\nline", " --out$"),
        ("nowhere", (), "out", "--profile nowhere: "),
    ],
)
def test_bad_input_comes_before_anything_is_written(
    here, name, overrides, out, complaint
):
    with expect_refusal(complaint):
        send(here, name, *overrides, out=out)
    assert not (here / out).exists()


def test_a_job_in_the_queue_with_another_configuration_is_named(here, monkeypatch):
    def accept(submitter, jobs):
        ids = {job.name: f"5_{task}" for task, job in enumerate(jobs)}
        submitter.add(ids)
        return ids

    monkeypatch.setattr(submission.Submitter, "send", accept)
    pending = slurm.Queued("PENDING", "Priority", 0)
    queue = {"5_0": pending, "5_1": pending}
    monkeypatch.setattr(slurm, "find_jobs", lambda ids: queue)
    send(here, "slurm")
    assert not any("scancel" in line for line in send(here, "slurm"))
    lines = send(here, "slurm", "training.lr=0.5")
    for line, job in zip(lines, queue, strict=True):
        assert "training.lr" in line and f"scancel {job}" in line


def test_nothing_is_submitted_while_squeue_fails(here, monkeypatch):
    """A cell that was submitted before may still be in the queue."""
    folder = here / "out" / "jobs"
    folder.mkdir(parents=True)
    (folder / "submitted.json").write_text('{"seed=0": "7"}')
    monkeypatch.setattr(slurm, "find_jobs", lambda ids: None)
    before = sorted(here.rglob("*"))
    with pytest.raises(RunFailure, match="squeue"):
        send(here, "slurm")
    assert sorted(here.rglob("*")) == before
