"""Scripts that call ``hpcfl.run`` on several ranks: all ranks do the same, or the job
ends.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import MPIEXEC
from zygote import PATHS

pytestmark = pytest.mark.mpi

SCRIPT = str(Path(__file__).with_name("script.py"))


@pytest.fixture
def script(start, tmp_path):
    """Return ``script(how)``, which runs it on two ranks and returns exit code, output
    and seconds.
    """

    def play(how):
        begun = time.monotonic()
        job = start(2, tmp_path / "out", program=(SCRIPT,), command=how)
        code, output = job.wait()
        return code, output, time.monotonic() - begun

    return play


@pytest.mark.parametrize(
    ("how", "key"),
    [
        ("seed", "seed: 0 on rank 0, 1 on rank 1"),
        ("sweep", "[sweep]: "),
        ("file", "of_rank.py: "),
        ("variable", '$MKL_CBWR: "AUTO,STRICT" on rank 0, "AVX2" on rank 1'),
    ],
)
def test_ranks_with_different_settings_are_refused_in_one_line(
    script, tmp_path, how, key
):
    code, output, _ = script(how)
    assert code == 2, output
    (line,) = output.splitlines()
    assert line.startswith(f"hpcfl: {key}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("how", ["raises first", "leaves"])
def test_a_rank_that_ends_before_the_run_ends_the_job(script, how):
    code, output, seconds = script(how)
    assert code not in (0, 2, 75) and seconds < 40
    assert " within 2 s" in output


def test_a_rank_that_fails_once_mpi_has_started_ends_the_job(tmp_path):
    """Complete Python processes, which finalise MPI when they end and may wait for the
    other ranks; they give up soon.
    """
    played = subprocess.run(
        [MPIEXEC, "-n", "2", sys.executable, SCRIPT, "raises with MPI", tmp_path],
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert played.returncode not in (0, 2, 75)
    assert "one rank has failed" in played.stderr and "done" not in played.stdout


def test_a_rank_that_fails_after_a_run_ends_the_job_at_once(script):
    code, output, _ = script("raises later")
    assert code not in (0, 2, 75)
    assert "one rank has failed" in output and "silent" not in output


def test_scripts_that_do_the_same_end_well(script):
    code, output, _ = script("all")
    assert code == 0 and output.count("done, finished") == 2
