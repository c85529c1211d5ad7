"""The supervisor with replacements of the ranks and of Slurm's commands."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcfl.cluster import supervisor
from hpcfl.cluster.supervisor import Supervisor

pytestmark = pytest.mark.slow  # needs the zygote, which takes seconds to start

# ranks that do this at a warning
RANKS = "trap '{}' USR1; touch started; for i in $(seq 300); do sleep 0.1; done"
STOPPING = RANKS.format("exit 75")
TOO_EARLY = RANKS.format("exit 138")
AT_THE_SECOND = RANKS.format('trap "exit 75" USR1')
DEAF = "trap '' USR1; touch started; sleep 4"
# the job that requests a requeue is killed
REQUEUES = "(sleep 0.3; kill -9 $PPID) >/dev/null 2>&1 &"
REQUEUED = -9


@pytest.fixture
def slurm(zygote, tmp_path, monkeypatch):
    """Return ``slurm(scontrol="exit 0", …)``, which makes commands that record their
    calls and then do this. Python is forked from the zygote.
    """
    monkeypatch.setattr(sys, "executable", str(zygote.python))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)

    def put(**programs: str):
        for name, body in programs.items():
            path = tmp_path / "bin" / name
            path.write_text(
                f"#!/bin/sh\necho {name} $* restarts=$HPCFL_RESTARTS >> {tmp_path}/calls\n"
                f"{body}\n"
            )
            path.chmod(0o755)

    put(squeue="echo '7|RUNNING|None|0|'")
    return put


def run_supervisor(
    folder: Path,
    ranks: str,
    warning: float = 60,
    launcher: str = "bash",
    again: str = "again.sbatch 'two words' b",
    words: Sequence[str] = (),
) -> "subprocess.Popen[str]":
    options = f"--out out --record out.requeues --warning {warning} --max-requeues 1"
    program = [sys.executable, "-m", "hpcfl.cluster.supervisor", *options.split()]
    return subprocess.Popen(
        [*program, "--again", again, "--", launcher, "-c", ranks, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def supervise(folder: Path, ranks: str, send: int | None = None, **options):
    """Return exit code and output of the supervisor; ``send``: a signal to send after
    the ranks have started.
    """
    process = run_supervisor(folder, ranks, **options)
    if send is not None:
        while not (folder / "started").exists():
            time.sleep(0.05)
        process.send_signal(send)
    output = process.communicate(timeout=60)[1]
    return process.returncode, output


def calls(folder: Path) -> list[str]:
    """Return the calls of Slurm's commands except squeue."""
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if not line.startswith("squeue")]


def noted(folder: Path) -> dict:
    return json.loads((folder / "out.requeues").read_text())


def checkpoint(folder: Path, round: int, inside: str = ""):
    path = folder / "out" / inside / "checkpoints" / f"manifest-{round:08d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_the_supervisor_does_not_import_torch():
    """One process on the first node of every job supervises the computing processes."""
    code = "import sys, hpcfl.cluster.supervisor; print('torch' in sys.modules)"
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed == "False\n"


def test_a_complete_run_is_left_alone(tmp_path, slurm):
    slurm(scontrol="exit 0")
    assert supervise(tmp_path, "exit 0") == (0, "")
    assert calls(tmp_path) == []


def test_a_job_is_requeued_if_its_ranks_stop(tmp_path, slurm):
    """Slurm signalled them directly."""
    slurm(scontrol=REQUEUES)
    assert supervise(tmp_path, "exit 75")[0] == REQUEUED
    assert calls(tmp_path) == ["scontrol requeue 7 restarts="]


@pytest.mark.parametrize(
    ("ranks", "warning", "words"),
    [
        (STOPPING, 60, "job 7 stopped in time\nhpcfl: job 7 requeued"),
        (DEAF, 2, "in the middle of a round"),
        (TOO_EARLY, 60, "(the ranks ended with code 138)"),
        (AT_THE_SECOND, 60, "stopped in time"),
    ],
)
def test_ranks_are_requeued_for_any_reaction_to_a_warning(
    tmp_path, slurm, ranks, warning, words
):
    slurm(scontrol=REQUEUES)
    code, output = supervise(tmp_path, ranks, signal.SIGUSR2, warning=warning)
    assert code == REQUEUED and words in output
    assert calls(tmp_path) == ["scontrol requeue 7 restarts="]


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_requeued_job_does_not_start_over(tmp_path, slurm, monkeypatch, restarts):
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    ranks = 'echo "$@" > received'
    assert supervise(tmp_path, ranks, words=["hpcfl", "run", "--fresh"]) == (0, "")
    option = "" if int(restarts) else " --fresh"
    assert (tmp_path / "received").read_text() == f"run{option}\n"


def test_without_scontrol_another_job_follows(tmp_path, slurm):
    slurm(scontrol="exit 1", sbatch="echo '8;testbed'")
    code, output = supervise(tmp_path, "exit 75")
    assert code == 75 and "job 8 " in output
    sent = (
        "sbatch --parsable --dependency=afterany:7 again.sbatch two words b restarts=1"
    )
    assert calls(tmp_path)[-1] == sent
    assert noted(tmp_path)["followers"] == {"7": "8"}


def test_the_job_after_an_array_task_is_no_array_task(tmp_path, slurm, monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    slurm(scontrol="exit 1", sbatch=f"env > {tmp_path}/handed-on; echo 8")
    assert supervise(tmp_path, "exit 75")[0] == 75
    assert calls(tmp_path)[-1].startswith(
        "sbatch --parsable --dependency=afterany:5_1 again.sbatch"
    )
    handed_on = (tmp_path / "handed-on").read_text()
    assert "HPCFL_RESTARTS=3" in handed_on and "SLURM_JOB_ID=7" in handed_on
    assert "SLURM_ARRAY" not in handed_on and "SLURM_RESTART" not in handed_on


def test_missing_commands_of_slurm_are_named(tmp_path, slurm):
    code, output = supervise(tmp_path, "exit 75")
    assert code == 1 and "scontrol nor sbatch" in output


def test_a_job_that_may_not_be_requeued_ends(tmp_path, slurm):
    slurm(scontrol=REQUEUES, sbatch="echo 8")
    code, output = supervise(tmp_path, "exit 75", again="")
    assert code == 1 and "no-requeue; " in output
    assert calls(tmp_path) == []


def test_a_cancelled_job_stays_cancelled(tmp_path, slurm):
    slurm(scontrol="exit 0", squeue="echo '7|CANCELLED|None|0|'")
    code, output = supervise(tmp_path, "exit 75")
    assert code == 75 and "job 7 stopped in time\nhpcfl: job 7 was ended by " in output
    assert calls(tmp_path) == [] and noted(tmp_path)["failure"] is None


def test_a_failure_is_not_requeued_and_noted(tmp_path, slurm):
    slurm(scontrol="exit 0")
    checkpoint(tmp_path, 4)
    code, output = supervise(tmp_path, "kill -9 $$")
    assert code == 1 and "SIGKILL" in output and "round 4" in output
    assert calls(tmp_path) == []
    assert "SIGKILL" in noted(tmp_path)["failure"]


def test_the_first_error_of_a_rank_in_this_job_is_noted(tmp_path, slurm):
    complain = "from hpcfl.files.output import complain; "
    bugs = [f'{complain}complain("rank {rank} failed: a bug\\nat")' for rank in (1, 2)]
    ranks = "; ".join(f"{shlex.quote(sys.executable)} -c '{bug}'" for bug in bugs)
    for command, why in (
        (f"{ranks}; exit 137", ": rank 1 failed: a bug"),
        ("exit 3", ""),
    ):
        ended, output = supervise(tmp_path, command)
        code = command.rpartition(" ")[2]
        assert noted(tmp_path)["failure"] == (
            f"the ranks ended with code {code}{why}; a new submission continues from round 0"
        )
        assert ended == 1 and output.count("a bug") == 3 * bool(why)


def test_a_missing_launcher_is_reported_in_one_line(tmp_path, slurm):
    why = "nothing: No such file or directory"
    assert supervise(tmp_path, "", launcher="nothing") == (1, f"hpcfl: {why}\n")
    assert noted(tmp_path)["failure"] == why


def test_outside_slurm_nothing_is_requeued(tmp_path, slurm, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID")
    code, output = supervise(tmp_path, "exit 75")
    assert code == 1 and "the same command continues" in output


def test_requeues_without_a_new_checkpoint_are_counted(tmp_path, slurm, monkeypatch):
    slurm(scontrol=REQUEUES)
    assert supervise(tmp_path, "exit 75")[0] == REQUEUED
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    # the number that max_requeues allows
    assert supervise(tmp_path, "exit 75")[0] == REQUEUED
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    code, output = supervise(tmp_path, "touch ran; exit 75")
    assert code == 1
    assert "2 times" in output and "max_requeues = 1" in output
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("inside", ["", "cell", "search/run of a tuning"])
def test_a_new_checkpoint_starts_the_count_again(tmp_path, slurm, monkeypatch, inside):
    slurm(scontrol=REQUEUES)
    for restart in range(4):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
        checkpoint(tmp_path, 1 + restart // 2, inside)
        assert supervise(tmp_path, "exit 75")[0] == REQUEUED


def test_submitting_again_starts_the_count_again(tmp_path, slurm):
    slurm(scontrol=REQUEUES)
    for _ in range(3):
        assert supervise(tmp_path, "exit 75")[0] == REQUEUED


class Ranks:
    """Replacement of the ranks' launcher, with a clock that only sleeping advances."""

    def __init__(self, ends: float):
        self.now, self.ends, self.signals = 0.0, ends, []
        self.returncode = None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float):
        self.now += seconds

    def poll(self) -> int | None:
        if self.now > self.ends:
            self.returncode = 0
        return self.returncode

    def send_signal(self, number: int):
        self.signals.append(self.now)
        self.returncode = 75


def make_supervisor(folder: Path, warning: float = 70) -> Supervisor:
    return Supervisor([], "", str(folder / "record"), warning, 1, ["again"])


def write_pace(folder: Path, **seconds: float):
    """Write the seconds that the ranks measured."""
    (folder / "record.pace").write_text(json.dumps(seconds))


@pytest.mark.parametrize(
    ("limit", "checkpoint", "stops", "output"),
    [
        # 1.1 · (20 + 200) s, and 45 s to leave and for the requeue, are 287 s
        (4000, 200, 4000 - 287, "set warning = 300"),
        (1000, 200, 1000 - 287, "stops itself 287 s before"),
        (500, 200, None, "since the last checkpoint"),
        (None, 200, None, "since the last checkpoint"),
        (1001, 1, None, ""),  # Slurm's warning is early enough
    ],
)
def test_a_stop_is_requested_early_enough(
    tmp_path, monkeypatch, capfd, limit, checkpoint, stops, output
):
    ranks = Ranks(ends=limit or 1000)
    left = (lambda: limit - ranks.now) if limit else (lambda: None)
    monkeypatch.setattr(supervisor.slurm, "find_seconds_left", left)
    monkeypatch.setattr(supervisor, "time", ranks)
    watching = make_supervisor(tmp_path)
    write_pace(tmp_path, round=20, checkpoint=checkpoint)
    code = watching._watch(ranks)
    if stops is None:
        assert code == 0 and ranks.signals == []
    else:
        assert code == 75 and 0 <= ranks.signals[0] - stops <= 6
    printed = capfd.readouterr().err
    assert output in printed and bool(output) == bool(printed)


def test_longer_rounds_are_noted_once(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(supervisor, "time", Ranks(ends=0))
    watching = make_supervisor(tmp_path)
    watching._end = watching._limit = 5000.0
    # 1.1 · (20 + 2) s and 45 s are less than the warning; 1.1 · 502 s and 45 s are 597 s
    for seconds, lines in [(20, 0), (500, 1), (510, 0)]:
        write_pace(tmp_path, round=seconds, checkpoint=2)
        watching._warn_in_time()
        printed = capfd.readouterr().err.splitlines()
        assert len(printed) == lines
    assert watching._warned is None


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        ("0:40|", 40),
        ("1-02:03:04|", 93784),
        ("10:00:01|", 36001),
        ("UNLIMITED|", None),
        ("", None),
    ],
)
def test_seconds_until_the_time_limit(slurm, monkeypatch, answer, seconds):
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    slurm(squeue=f"echo '{answer}'")
    assert supervisor.slurm.find_seconds_left() == seconds
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 1000))
    if not answer:
        assert 990 < supervisor.slurm.find_seconds_left() <= 1000
    monkeypatch.delenv("SLURM_JOB_ID")
    assert supervisor.slurm.find_seconds_left() is None


@pytest.mark.parametrize(
    ("left", "patience"), [(100, 70), (None, 30), (500, 30), (50, 30)]
)
def test_a_signal_of_the_time_limit_may_come_early(
    tmp_path, monkeypatch, left, patience
):
    """Slurm sends it up to a minute early; other signals belong to a preemption."""
    ranks = Ranks(ends=1000)
    ranks.send_signal = lambda number: None
    monkeypatch.setattr(supervisor.slurm, "find_seconds_left", lambda: left)
    monkeypatch.setattr(supervisor, "time", ranks)
    watching = make_supervisor(tmp_path, warning=60)
    sleep = ranks.sleep

    def warn_first(seconds):
        watching._warn(signal.SIGUSR2, None)
        ranks.sleep = sleep

    ranks.sleep = warn_first
    assert watching._watch(ranks) is None
    assert 0 <= ranks.now - patience < 1
