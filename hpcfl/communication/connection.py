"""The choice of a process's communicator."""

import os

from hpcfl.communication.communicator import UNTIL_TOLD, Communicator, OneProcess

# environment variables; a launcher of MPI ranks sets at least one of them
LAUNCHED_BY = (
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MPI_LOCALRANKID",
    "SLURM_PROCID",
    "PALS_RANKID",
)


def connect(patience: float = UNTIL_TOLD) -> Communicator:
    """Return the communicator of this process, of MPI if there are several ranks.

    Call it before any heavy import: a rank that dies before MPI is initialised leaves
    the others waiting. They end after ``patience`` seconds.
    """
    if not any(name in os.environ for name in LAUNCHED_BY):
        return OneProcess()
    from hpcfl.communication import mpi

    return mpi.join(patience)


def launched_world_size() -> int | None:
    """Return the number of ranks that the launcher reports; None without a report."""
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"):
        if name in os.environ and (
            name != "SLURM_NTASKS" or "SLURM_PROCID" in os.environ
        ):
            return int(os.environ[name])
    return None
