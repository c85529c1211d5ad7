"""The final digest of every method in two partitions, with all clients and with half of
them: what no tidying may change.

``python tests/digests.py`` prints them as JSON, ``mpiexec -n 3 python
tests/digests.py`` those of three ranks, which are the same. The processor and the
version of torch, on which the last bits depend, are printed with them.
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from hpcfl.communication.communicator import Communicator
from hpcfl.communication.mpi import connect

EVEN = [[6, 6, 6, 6], [5, 5, 5, 5], [7, 6, 5, 4], [4, 5, 6, 7], [6, 5, 6, 5]]
FRACTIONS = (1.0, 0.5)


def digests(communicator: Communicator, folder: Path) -> dict[str, str]:
    """``METHOD PARTITION FRACTION`` → digest, on every rank. Collective."""
    import tiny

    from hpcfl.commands.run import run
    from hpcfl.experiment import config, plugins
    from hpcfl.storage.checkpoint import latest

    found = {}
    for method in plugins.names("hpcfl.methods"):
        for partition, counts in (("uneven", tiny.COUNTS), ("even", EVEN)):
            for fraction in FRACTIONS if method != "apple" else FRACTIONS[:1]:
                table = tiny.table(
                    method,
                    counts,
                    participation={"fraction": fraction},
                    checkpoint={"every": 3},
                )
                place = folder / f"{method}-{partition}-{fraction}"
                with contextlib.redirect_stdout(io.StringIO()):
                    run(config.parse(table), place, communicator)
                newest = communicator.bcast(
                    latest(place / "checkpoints").digest
                    if communicator.is_server
                    else None
                )
                found[f"{method} {partition} {fraction}"] = newest
    return found


def depends_on() -> dict[str, str]:
    """What the last bits depend on."""
    import torch

    from hpcfl.storage import provenance

    return {"processor": provenance.processor(), "torch": torch.__version__}


if __name__ == "__main__":
    world = connect()
    with TemporaryDirectory() as place:
        found = digests(world, Path(world.bcast(place)))
    if world.is_server:
        json.dump({**depends_on(), "digests": found}, sys.stdout, indent=1)
        print()
    world.end(0)
