"""Choice of a process's communicator."""

import os

from hpcfl.communication.communicator import HANG_AFTER, Communicator, OneProcess

# Environment variables, of which an MPI launcher sets at least one.
LAUNCHED_BY = (
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MPI_LOCALRANKID",
    "SLURM_PROCID",
    "PALS_RANKID",
)


def connect(patience: float = HANG_AFTER) -> Communicator:
    """Return the communicator of this process: MPI if there are several ranks.

    Call it before any heavy import. If a rank exits before MPI is initialised, the
    other ranks wait for it.

    Args:
        patience: number of seconds after which ranks exit if not all have connected.
    """
    if not any(name in os.environ for name in LAUNCHED_BY):
        return OneProcess()
    from hpcfl.communication import mpi

    return mpi.join(patience)


def read_world_size() -> int | None:
    """Return the number of ranks according to the launcher; None without a launcher."""
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"):
        if name in os.environ and (
            name != "SLURM_NTASKS" or "SLURM_PROCID" in os.environ
        ):
            return int(os.environ[name])
    return None
