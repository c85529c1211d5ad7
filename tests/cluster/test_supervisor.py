"""The supervisor with stand-ins for the ranks and for Slurm's commands."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RANKS = "trap 'exit 75' USR1; touch started; for i in $(seq 300); do sleep 0.1; done"
REQUEUES = "(sleep 0.3; kill -9 $PPID) >/dev/null 2>&1 &"  # the job that asks for it is killed
REQUEUED = -9
TOO_EARLY = "trap 'exit 138' USR1; touch started; for i in $(seq 300); do sleep 0.1; done"
DEAF = "trap '' USR1; touch started; sleep 30"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """``slurm(scontrol="exit 0", …)``: commands that note how they were called and then do this."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)

    def put(**programs: str) -> None:
        for name, body in programs.items():
            path = tmp_path / "bin" / name
            path.write_text(f"#!/bin/sh\necho {name} $* restarts=$HPCFL_RESTARTS >> {tmp_path}/calls\n{body}\n")
            path.chmod(0o755)
    put(squeue="echo '7|RUNNING|None|0|'")
    return put


def supervise(folder: Path, ranks: str, send: int | None = None, warning: float = 60, max_requeues: int = 1):
    """Exit code and what was said; ``send``: a signal once the ranks have started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcfl.cluster.supervisor", "--out", "out", "--record", "out.requeues",
         "--again", "again.sbatch 'two words' b",
         "--warning", str(warning), "--max-requeues", str(max_requeues), "--", "bash", "-c", ranks],
        cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    if send is not None:
        while not (folder / "started").exists():
            time.sleep(0.05)
        process.send_signal(send)
    said = process.communicate(timeout=60)[1]
    return process.returncode, said


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return [line for line in path.read_text().splitlines() if not line.startswith("squeue")] if path.exists() else []


def checkpoint(folder: Path, round: int) -> None:
    path = folder / "out" / "checkpoints" / f"manifest-{round:08d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_a_complete_run_is_left_alone(tmp_path, slurm):
    slurm(scontrol="exit 0")
    assert supervise(tmp_path, "exit 0") == (0, "")
    assert calls(tmp_path) == []


def test_a_warning_is_passed_on_and_the_job_requeued(tmp_path, slurm):
    slurm(scontrol=REQUEUES)
    code, said = supervise(tmp_path, RANKS, signal.SIGUSR2)
    assert code == REQUEUED and "job 7 requeued, stopped in time" in said
    assert calls(tmp_path) == ["scontrol requeue 7 restarts="]


def test_ranks_that_stop_by_themselves_are_requeued(tmp_path, slurm):
    """Slurm told them directly."""
    slurm(scontrol=REQUEUES)
    assert supervise(tmp_path, "exit 75")[0] == REQUEUED
    assert calls(tmp_path) == ["scontrol requeue 7 restarts="]


def test_ranks_that_are_too_slow_are_requeued_all_the_same(tmp_path, slurm):
    slurm(scontrol=REQUEUES)
    code, said = supervise(tmp_path, DEAF, signal.SIGUSR2, warning=2)
    assert code == REQUEUED and "in the middle of a round" in said


def test_ranks_that_die_of_the_warning_are_requeued(tmp_path, slurm):
    """It came before they could take it."""
    slurm(scontrol=REQUEUES)
    code, said = supervise(tmp_path, TOO_EARLY, signal.SIGUSR2)
    assert code == REQUEUED and "before the ranks could take it (the ranks ended with code 138)" in said


def test_ranks_are_told_again(tmp_path, slurm):
    slurm(scontrol=REQUEUES)
    once = "trap 'trap \"exit 75\" USR1' USR1; touch started; for i in $(seq 300); do sleep 0.1; done"
    code, said = supervise(tmp_path, once, signal.SIGUSR2)
    assert code == REQUEUED and "stopped in time" in said


def test_without_scontrol_another_job_follows(tmp_path, slurm):
    slurm(scontrol="exit 1", sbatch="echo '8;testbed'")
    code, said = supervise(tmp_path, "exit 75")
    assert code == 75 and "job 8 follows it" in said
    assert calls(tmp_path)[-1] == "sbatch --parsable --dependency=afterany:7 again.sbatch two words b restarts=1"


def test_without_any_command_it_says_what_to_do(tmp_path, slurm):
    code, said = supervise(tmp_path, "exit 75")
    assert code == 1 and "neither scontrol nor sbatch works" in said and "the same command continues" in said


def test_a_cancelled_job_stays_cancelled(tmp_path, slurm):
    slurm(scontrol="exit 0", squeue="echo '7|CANCELLED|None|0|'")
    code, said = supervise(tmp_path, "exit 75")
    assert code == 1 and "job 7 is cancelled and not requeued" in said
    assert calls(tmp_path) == []


def test_a_failure_is_not_requeued_and_noted(tmp_path, slurm):
    slurm(scontrol="exit 0")
    checkpoint(tmp_path, 4)
    code, said = supervise(tmp_path, "kill -9 $$")
    assert code == 1 and "the ranks were ended by SIGKILL" in said and "continues from round 4" in said
    assert calls(tmp_path) == []
    assert "SIGKILL" in json.loads((tmp_path / "out.requeues").read_text())["failure"]


def test_outside_slurm_nothing_is_requeued(tmp_path, slurm, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID")
    code, said = supervise(tmp_path, "exit 75")
    assert code == 1 and "the same command continues" in said


def test_requeues_without_a_new_checkpoint_are_counted(tmp_path, slurm, monkeypatch):
    slurm(scontrol=REQUEUES)
    assert supervise(tmp_path, "exit 75")[0] == REQUEUED
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert supervise(tmp_path, "exit 75")[0] == REQUEUED  # the one that max_requeues allows
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    code, said = supervise(tmp_path, "touch ran; exit 75")
    assert code == 1 and "requeued 2 times without a new checkpoint (round 0), more than max_requeues = 1" in said
    assert not (tmp_path / "ran").exists()


def test_a_new_checkpoint_starts_the_count_again(tmp_path, slurm, monkeypatch):
    slurm(scontrol=REQUEUES)
    for restart in range(6):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
        checkpoint(tmp_path, 1 + restart // 2)
        assert supervise(tmp_path, "exit 75")[0] == REQUEUED


def test_submitting_again_starts_the_count_again(tmp_path, slurm):
    slurm(scontrol=REQUEUES)
    for _ in range(4):
        assert supervise(tmp_path, "exit 75")[0] == REQUEUED
