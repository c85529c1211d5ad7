"""Jobs under Open MPI, if it is installed; all other jobs of the tests run under MPICH.

Its place is found by ``ompi_info`` on the PATH. mpi4py loads the library that
MPI4PY_LIBMPI names in place of MPICH's.
"""

import shutil
import signal
import subprocess
from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.mpi

ROUNDS = 24
# Allow more ranks than cores, and any user.
SETTINGS = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "true",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


@pytest.fixture
def start_open_mpi(start):
    """Return ``start_open_mpi(ranks, *arguments)``, which starts a Job under Open MPI's
    mpiexec.
    """
    ompi_info = shutil.which("ompi_info")
    if ompi_info is None:
        pytest.skip("Open MPI is not installed: there is no ompi_info on the PATH")
    printed = subprocess.run(
        [ompi_info, "--path", "libdir", "--parsable"],
        capture_output=True,
        text=True,
        check=True,
    )
    built_for = Path(printed.stdout.strip().rpartition(":")[2])
    # its place after it was moved
    beside = Path(ompi_info).resolve().parents[1] / "lib"
    (library, *_) = [
        path
        for folder in (built_for, beside)
        if (path := folder / "libmpi.so.40").exists()
    ]
    mpiexec = str(Path(ompi_info).with_name("mpiexec"))
    environment = {"MPI4PY_LIBMPI": str(library), **SETTINGS}
    return lambda ranks, *arguments, **given: start(
        ranks, *arguments, launcher=(mpiexec,), **environment, **given
    )


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_digest_is_that_of_one_process(
    start_open_mpi, alone, experiment, tmp_path, ranks
):
    file = experiment("[method]\nname = 'fedala'\nmost_epochs = 3\n", 4)
    assert alone(file, tmp_path / "alone") == 0
    code, output = start_open_mpi(ranks, file, "--out", tmp_path / "together").wait()
    assert code == 0, output
    assert f"{ranks - 1} worker" in output
    assert jobs.digest(tmp_path / "together") == jobs.digest(tmp_path / "alone")


def test_a_killed_rank_ends_the_job_and_the_same_command_continues(
    start_open_mpi, alone, experiment, tmp_path
):
    file = experiment("[method]\nname = 'diversifed'\n", ROUNDS)
    assert alone(file, tmp_path / "calm") == 0
    folder = tmp_path / "disturbed"
    job = start_open_mpi(3, file, "--out", folder)
    jobs.wait_for_round(job, folder, 2)
    job.signal(signal.SIGKILL, job.ranks()[1:2])
    code, output = job.wait()
    assert code != 0, output
    assert 2 <= jobs.round_of(folder) < ROUNDS
    code, output = start_open_mpi(2, file, "--out", folder).wait()
    assert code == 0, output
    assert jobs.digest(folder) == jobs.digest(tmp_path / "calm")


def test_a_mistake_ends_with_code_2_and_one_message(
    start_open_mpi, experiment, tmp_path
):
    file = experiment("[method]\nname = 'fedavgg'\n")
    code, output = start_open_mpi(3, file, "--out", tmp_path / "run").wait()
    assert code == 2, output
    assert output.count("did you mean 'fedavg'") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("rows", jobs.GIGABYTES, ids=["wide", "narrow"])
def test_more_than_two_gigabytes_in_one_exchange(start_open_mpi, rows):
    """Open MPI 5 counts in 32 bits, and so does a call for the bytes of all ranks."""
    jobs.need_memory(12)
    code, output = start_open_mpi(2, program=(jobs.GIGABYTES_PROGRAM,), **rows).wait()
    assert code == 0, output
