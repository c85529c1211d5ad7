"""One failure ends the job on all ranks within seconds, with a message that names it;
no rank keeps waiting.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jobs
import pytest

from hpcfl.cluster import status
from hpcfl.storage import results

pytestmark = pytest.mark.mpi

NOTING, STOPPING, UNREPORTED, WARNED, WRAPPED = (
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("noting", "stopping", "unreported", "warned", "wrapped")
)
FEDAVG = "[method]\nname = 'fedavg'\n"


def error_lines(output):
    """Return the lines of an output that hpcfl writes about errors."""
    return [line for line in output.splitlines() if line.startswith("hpcfl:")]


@pytest.fixture
def ended(start, experiment, tmp_path):
    """Return ``ended(ranks, text, …)``, which returns exit code and output of a run on
    the given number of ranks.
    """

    def play(ranks, text=FEDAVG, rounds=3, out=None, **keys):
        file = experiment(text, rounds)
        return start(ranks, file, "--out", out or tmp_path / "out", **keys).wait()

    return play


def test_an_exception_in_a_method_ends_all_ranks_and_names_rank_round_and_clients(
    ended,
):
    code, output = ended(3, "[method]\nname = 'tiny:Raises'\nclient = 3\n")
    assert code not in (0, 2, 75)
    assert re.match(
        r"hpcfl: rank [12] on .* failed: round 2, clients? [0-4, ]*3[0-4, ]*"
        r"\S+tiny.py:\d+: ZeroDivisionError: a bug",
        error_lines(output)[0],
    )
    assert "raise ZeroDivisionError" in output


@pytest.mark.parametrize("stopped", [0, 2])
def test_a_silent_rank_ends_the_job(start, experiment, tmp_path, stopped):
    file = experiment(f"{FEDAVG}[runtime]\nhang_after = 3.0\n", 100_000)
    job = start(3, file, "--out", tmp_path / "out")
    jobs.wait_for_round(job, tmp_path / "out", 2)
    job.signal(signal.SIGSTOP, [job.ranks()[stopped]])
    began = time.monotonic()
    code, output = job.wait()
    assert code not in (0, 75) and time.monotonic() - began < 30
    # The named rank depends on whether the stopped rank blocks another one during an
    # exchange.
    silent = r"hpcfl: (rank|a rank) .* 3 s \(runtime.hang_after\)"
    assert re.search(silent, output), output


def test_a_rank_that_stops_in_the_middle_of_an_exchange_ends_the_job(ended):
    """No rank polls for it: the server is inside a blocking call."""
    began = time.monotonic()
    text = f"{FEDAVG}[runtime]\nhang_after = 3.0\n"
    code, output = ended(2, text, program=(STOPPING,))
    assert code not in (0, 75) and time.monotonic() - began < 60
    assert " 3 s (runtime.hang_after)" in output


def test_a_silent_rank_before_round_1_ends_the_job(start, experiment, tmp_path):
    file = experiment(f"{FEDAVG}[runtime]\nhang_after = 1.0\n")
    replace_scheme(file, "tiny:Stuck")
    code, output = start(3, file, "--out", tmp_path / "out").wait()
    assert code not in (0, 2, 75)
    assert "hpcfl: rank 1 has been silent for 15 s" in output, output
    assert not (tmp_path / "out").exists()


def test_a_missing_file_on_one_rank_ends_all_ranks(start, experiment, tmp_path):
    file = experiment(FEDAVG)
    replace_scheme(file, "tiny:Unreadable")
    code, output = start(3, file, "--out", tmp_path / "out").wait()
    assert code == 2 and not (tmp_path / "out").exists()
    assert error_lines(output) == ["hpcfl: rank 1: a file is missing on this node"]


def replace_scheme(file, scheme):
    """Use another partition scheme in an experiment file."""
    path = Path(file)
    path.write_text(path.read_text().replace("tiny:Counts", scheme))


def test_two_signals_in_the_final_scoring_end_the_job_at_once_and_nothing_is_lost(
    start, alone, experiment, tmp_path
):
    file = experiment("[method]\nname = 'tiny:SlowEnd'\n")
    job = start(3, file, "--out", tmp_path / "out", SLOW_END="1")
    jobs.wait_for_round(job, tmp_path / "out", 3)
    time.sleep(0.5)
    for _ in range(2):
        job.signal(signal.SIGTERM, job.ranks())
        time.sleep(1.5)
    code, output = job.wait()
    assert code not in (0, 2, 75), output
    assert status.list_statuses(tmp_path / "out")[0].state == "stopped"
    assert alone(file, tmp_path / "out") == alone(file, tmp_path / "calm") == 0
    assert results.read(tmp_path / "out").rounds.tolist() == [1, 2, 3, 4]
    assert jobs.digest(tmp_path / "out") == jobs.digest(tmp_path / "calm")


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (FEDAVG, 0, ""),
        ("[method]\nname = 'fedavgg'\n", 2, "did you mean 'fedavg'?"),
        ("[method]\nname = 'tiny:Stops'\nclient = 3\n", 75, "round 2 of 3; "),
        ("[method]\nname = 'tiny:Diverges'\nclient = 3\n", 1, "client 3 diverged"),
    ],
)
def test_all_ranks_end_with_one_code_and_one_message(ended, tmp_path, text, code, line):
    _, output = ended(3, text, program=(NOTING,), CODES=str(tmp_path))
    codes = [(tmp_path / str(rank)).read_text() for rank in range(3)]
    assert codes == [str(code)] * 3, output
    assert output.count(line) == 1 or not line
    assert len(error_lines(output)) == (code != 0)


@pytest.mark.parametrize(("method", "code"), [("fedavg", 0), ("tiny:Stops", 75)])
def test_a_rank_that_exits_last_is_not_killed(ended, method, code):
    """MPICH's mpiexec kills all ranks if one has closed its connection without
    finalising.
    """
    text = f"[method]\nname = '{method}'\n"
    found, output = ended(3, text, program=(WRAPPED,))
    assert found == code and "BAD TERMINATION" not in output


@pytest.mark.parametrize(
    ("ranks", "method", "code"),
    [(3, "fedavg", 0), (3, "tiny:Stops", 75), (1, "tiny:Stops", 75)],
)
def test_a_warning_during_exit_does_not_change_the_code(ended, ranks, method, code):
    """Slurm's supervisor repeats its warning until the ranks have exited, which takes a
    while with torch.
    """
    text = f"[method]\nname = '{method}'\n"
    found, output = ended(ranks, text, program=(WARNED,))
    assert found == code and output.count("warned") == ranks


def test_a_report_that_fails_changes_no_code(ended, tmp_path):
    """The results are complete: all ranks exit with 0, and a note gives the command
    that makes the report again.
    """
    text = "[sweep]\nmethod.name = ['local', 'fedavg']\n"
    code, output = ended(3, text, 1, program=(UNREPORTED,))
    assert code == 0 and "BAD TERMINATION" not in output
    failed = "their report failed (ModuleNotFoundError"
    [note] = [line for line in output.splitlines() if failed in line]
    assert note.endswith(f"hpcfl show {tmp_path / 'out'}")
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"local", "fedavg"}


def test_a_full_disk_ends_all_ranks(ended, small_disk):
    (small_disk / "filler").write_bytes(bytes(900_000))
    text = "[method]\nname = 'tiny:Wide'\n"
    code, output = ended(3, text, 10_000, small_disk / "out")
    assert code not in (0, 2, 75)
    assert "No space left on device" in output and "Traceback" not in output


def test_no_room_for_matrices_beyond_the_memory_ends_all_ranks_at_once(
    ended, small_disk
):
    """Each rank needs space, and the first rank without space ends all."""
    text = "[method]\nname = 'tiny:Wide'\nwidth = 40000\n[runtime]\nmemory = 0.1\n"
    began = time.monotonic()
    code, output = ended(3, text, TMPDIR=str(small_disk))
    assert code not in (0, 2, 75) and time.monotonic() - began < 60
    line = error_lines(output)[0]
    assert line.startswith("hpcfl: rank ") and "No space left on device" in line
    assert "Traceback" not in output


@contextmanager
def vanished(folder: Path) -> Iterator[Path]:
    """Remove the folder inside the block, and return its new place."""
    yield folder.rename(folder.with_name("elsewhere"))


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """Make the folder read-only inside the block."""
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "--bind", folder, folder], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting needs root")
    try:
        remount = ["mount", "-o", "remount,bind,ro", folder]
        deadline = time.monotonic() + jobs.PATIENCE
        # fails while a file is being written there
        while subprocess.run(remount, capture_output=True).returncode:
            assert time.monotonic() < deadline
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(vanished, "No such file or directory"), (read_only, "Read-only file system")],
)
def test_a_results_folder_that_is_lost_ends_all_ranks_and_keeps_its_checkpoint(
    start, experiment, tmp_path, fault, reason
):
    file, folder = experiment(FEDAVG, 100_000), tmp_path / "out"
    job = start(3, file, "--out", folder)
    jobs.wait_for_round(job, folder, 2)
    with fault(folder) as kept:
        code, output = job.wait()
    assert code == 1
    (line,) = error_lines(output)
    assert reason in line and "Traceback" not in output
    assert jobs.round_of(kept) >= 2


def test_a_folder_that_is_read_only_from_the_start_is_bad_input(ended, tmp_path):
    (tmp_path / "results").mkdir()
    with read_only(tmp_path / "results") as folder:
        code, output = ended(2, out=folder / "out")
    assert code == 2
    (line,) = error_lines(output)
    assert line.startswith(f"hpcfl: {folder}/out")
    assert "Read-only file system; " in line and "--out" in line


def test_worlds_of_one_rank_each_are_refused(ended, tmp_path):
    """As srun starts them with the wrong type of MPI."""
    code, output = ended(0, SLURM_NTASKS="4", SLURM_PROCID="0")
    assert code == 2
    assert " 4 ranks " in output and "srun --mpi=pmi2" in output
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_more_than_two_gigabytes_in_one_exchange(start):
    """The rows are wide; ``test_ranks.py`` sends narrow ones in many blocks."""
    jobs.need_memory(12)
    wide = jobs.GIGABYTES[0]
    code, output = start(2, program=(jobs.GIGABYTES_PROGRAM,), **wide).wait()
    assert code == 0, output
