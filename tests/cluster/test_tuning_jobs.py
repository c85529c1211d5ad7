"""Jobs of a tuning and their dependencies, without Slurm."""

import itertools
import re
import shlex
from pathlib import Path

import pytest
from playing import call
from refusals import expect_refusal

from hpcfl.cluster import slurm, status, submission
from hpcfl.cluster.submission_folder import SubmittedJobs
from hpcfl.cluster.tuning_jobs import list_stages
from hpcfl.commands import tune
from hpcfl.experiment import config
from hpcfl.storage import tune_folder
from hpcfl.storage.tune_folder import Result
from hpcfl.tuning import plan

EXPERIMENT = """
name = "t"
rounds = 30
[partition]
clients = 3
[training]
validation = 0.25
[tune]
methods = ["fedavg", "fedphp"]
budget = 9000
trials = 4
rungs = 2
search_seeds = [7]
final_seeds = [0]
search = { "training.lr" = [0.1, 0.2] }
"""
# Four trials for half of a whole run, two of them for the other half: three whole runs.
# FedPHP's runs are whole: two, in addition to the 3 of 30 rounds that measure the cost
# of each.
TRIALS = {"fedavg": 4, "fedphp": 2}


@pytest.fixture
def here(make_place):
    """Make the current folder with a file to tune and profiles with and without Slurm."""
    profiles = {"bed": "at_once = 2", "local": 'cluster = "local"'}
    return make_place("t.toml", EXPERIMENT, profiles)


@pytest.fixture
def sent(monkeypatch):
    """Record the jobs instead of submitting them: (names, dependencies)."""
    arrays = []
    number = itertools.count(1)

    def send(submitter, jobs, after=()):
        arrays.append(([job.name for job in jobs], list(after)))
        array = next(number)
        ids = {job.name: f"{array}_{task}" for task, job in enumerate(jobs)}
        submitter.add(ids)
        return ids

    monkeypatch.setattr(submission.Submitter, "send", send)
    return arrays


def queue(monkeypatch, *alive):
    """Set the jobs that are pending or running in Slurm."""
    jobs = {job: slurm.Queued("PENDING", "Dependency", 0) for job in alive}
    monkeypatch.setattr(slurm, "find_jobs", lambda ids: jobs)


def submit(dry_run=False, profile="bed"):
    return list(submission.submit("t.toml", [], profile, out=None, dry_run=dry_run))


def trials(method, rung, numbers):
    return [f"{method},trial={number},seed=7,rung={rung}" for number in numbers]


def end_first_rung(folder):
    """Write the files of FedAvg's ended first rung, in which trials 1 and 2 are the
    best.
    """
    for trial, score in enumerate((0.1, 0.4, 0.3, 0.2)):
        result = Result(
            rounds=3, whole=6, gradients=9, score=score, rank=score, failure=None
        )
        cell = f"fedavg,trial={trial},seed=7"
        tune_folder.keep(folder, cell, "rung=0", result)


def test_every_rung_is_an_array_that_depends_on_the_previous(here, sent, monkeypatch):
    queue(monkeypatch)
    lines = submit()
    untuned = [f"{method},untuned,seed=7,rung=0" for method in TRIALS]
    first = [
        *trials("fedavg", 0, range(4)),
        untuned[0],
        *trials("fedphp", 0, range(2)),
        untuned[1],
    ]
    finals = [
        f"{method},{label},seed=0"
        for method in TRIALS
        for label in ("tuned", "untuned")
    ]
    assert sent == [
        (first, []),
        (trials("fedavg", 1, range(4)), ["1"]),
        (finals, ["2"]),
        (["outcome"], ["3"]),
    ]
    assert lines[:2] == ["rung 1 of 2: 8 jobs, 1", "rung 2 of 2: 4 jobs, 2"]
    assert lines[-1].startswith("follow with: hpcfl status ")
    script = (here / "runs/t/jobs/fedavg,trial=3,seed=7,rung=1.sbatch").read_text()
    part = "--stage 1 --cell fedavg,trial=3,seed=7"
    assert f"tune {here}/runs/t/jobs/tune.json --out {here}/runs/t {part}" in script


def test_completed_tasks_are_not_submitted_again(here):
    """FedAvg's first rung has ended except for the untuned trial: trials 1 and 2
    continue.
    """
    tuning = plan.read(config.read("t.toml"), "t.toml")
    folder = here / "runs" / "t"
    tune.begin(tuning, folder)
    end_first_rung(folder)
    first, second, finals, outcome = list_stages(tuning, folder)
    assert [task.name for task in first.tasks] == [
        "fedavg,untuned,seed=7,rung=0",
        *trials("fedphp", 0, range(2)),
        "fedphp,untuned,seed=7,rung=0",
    ]
    assert [task.name for task in second.tasks] == trials("fedavg", 1, [1, 2])
    assert (len(finals.tasks), len(outcome.tasks)) == (4, 1)
    assert first.tasks[0].place == "search/fedavg,untuned,seed=7"
    assert {task.place.partition("/")[0] for task in finals.tasks} == {
        "final",
        "untuned",
    }


def test_queued_tasks_are_awaited_and_not_submitted_again(here, sent, monkeypatch):
    queue(monkeypatch)
    submit()
    sent.clear()
    # the first rung still has tasks in the queue; all other jobs were cancelled
    queue(monkeypatch, "1_2", "1_3")
    lines = submit()
    assert lines[0] == "rung 1 of 2: 2 in the queue"
    names, after = sent[0]
    assert (len(names), after) == (6, [])
    # the second one waits for both arrays of the first, of which the new one is number
    # 5
    assert sent[1][1] == ["1", "5"]


def test_a_dry_run_shows_all_arrays_and_writes_nothing(here):
    text = "\n".join(submit(dry_run=True))
    assert text.count("#!/bin/bash") == 4
    assert text.count("#SBATCH --dependency=afterany:THE_ONE_BEFORE") == 3
    assert "#SBATCH --array=0-7%2" in text and "#SBATCH --array=0-3%2" in text
    assert not (here / "runs").exists()


def test_a_tuning_cannot_be_submitted_without_slurm(here):
    with expect_refusal(r"hpcfl tune t\.toml$"):
        submit(profile="local")


def test_without_slurm_the_advised_command_has_all_options(here):
    changes = ["training.lr=0.2", "tune.search_seeds=[7, 8]"]
    words = ["--set", changes[0], "--set", changes[1], "--out", "my runs"]
    advice = re.escape(f"hpcfl tune t.toml {shlex.join(words)}")
    with expect_refusal(f"{advice}$"):
        next(submission.submit("t.toml", changes, "local", Path("my runs"), False))


def test_status_shows_the_queued_rung(here, sent, monkeypatch):
    queue(monkeypatch)
    submit()
    queue(monkeypatch, "2_0", "2_1", "2_2", "2_3")
    states = {one.name: one.state for one in status.list_statuses(here / "runs" / "t")}
    assert states["fedavg,trial=0,seed=7"] == "queued"
    assert states["fedphp,trial=0,seed=7"] == "waiting"
    assert SubmittedJobs(here / "runs" / "t").jobs["outcome"] == "4_0"


def test_status_has_the_failure_of_the_last_job(here, sent, monkeypatch):
    queue(monkeypatch)
    submit()
    folder = here / "runs" / "t"
    (folder / "jobs" / "outcome.requeues").write_text('{"failure": "why"}')
    last = status.list_statuses(folder)[-1]
    assert (last.name, last.state, last.note) == ("outcome", "failed", "why")


def test_a_task_fails_if_its_previous_rung_has_not_ended(here, printed_errors):
    part = ["--stage", "1", "--cell", "fedavg,trial=0,seed=7"]
    assert call("tune", "t.toml", *part) == 1
    output = printed_errors().strip().splitlines()
    [line] = output
    assert line.startswith("hpcfl: fedavg,trial=0,seed=7: rung 1 ")


def test_a_task_of_an_unselected_trial_ends_at_once(here, capsys):
    folder = here / "runs" / "t"
    tune.begin(plan.read(config.read("t.toml"), "t.toml"), folder)
    end_first_rung(folder)
    part = ["--stage", "1", "--cell", "fedavg,trial=0,seed=7"]
    assert call("tune", "t.toml", *part) == 0
    output = capsys.readouterr().out
    assert output == "fedavg,trial=0,seed=7: not selected for rung 2\n"
    assert call("tune", "t.toml", "--stage", "1", "--cell", "x") == 2
    assert "'x'" in capsys.readouterr().err


def test_the_jobs_of_repeated_searches(here):
    """Three trials of FedAvg and two of FedPHP, of which the first are untuned, on one
    partition in each of two searches; untuned final runs belong to the first search.
    """
    changes = ["tune.searches=2", "tune.final_seeds=[0, 1]"]
    tuning = plan.read(config.read("t.toml", changes), "t.toml")
    folder = here / "runs" / "t"
    tune.begin(tuning, folder)
    tune.record_cells(tuning, folder)
    first, second, finals, outcome = list_stages(tuning, folder)
    for search in tuning.searches:
        seed = search.section.search_seeds[0]
        names = [f"search={search.number},untuned"] + [
            f"search={search.number},trial={trial}" for trial in (1, 2, 3)
        ]
        cells = [f"fedavg,{name},seed={seed}" for name in names]
        assert {f"{cell},rung=0" for cell in cells} <= {
            task.name for task in first.tasks
        }
        assert {f"{cell},rung=1" for cell in cells} <= {
            task.name for task in second.tasks
        }
    assert len(first.tasks) == 2 * (4 + 3) and len(second.tasks) == 2 * 4
    places = [task.place.partition("/")[0] for task in finals.tasks]
    assert (places.count("final"), places.count("untuned")) == (8, 4)
    assert len(outcome.tasks) == 1
    assert len(status.list_statuses(folder)) == 2 * (4 + 3) + 8 + 4
