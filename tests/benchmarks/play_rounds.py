"""Run the first rounds of an experiment for a race: ``[mpiexec -n RANKS] python
tests/benchmarks/play_rounds.py FILE --rounds N [--set SECTION.KEY=VALUE …]``.

Rank 0 prints "round N" at the end of each round. All written files are deleted.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from round_times import make_federation

from hpcfl.communication.connection import connect
from hpcfl.experiment import config
from hpcfl.simulation import preflight
from hpcfl.simulation.prepare import prepare_together
from hpcfl.simulation.signals import StopRequest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    communicator = connect()
    experiment = config.load(options.file, options.overrides)
    prepared = prepare_together(experiment, communicator)
    prepared = preflight.run(prepared, communicator)
    communicator.watch(experiment.runtime.hang_after)
    with (
        TemporaryDirectory() as scratch,
        StopRequest(lambda: communicator.abort(1)) as request,
    ):
        federation = make_federation(prepared, communicator, Path(scratch))
        for number in range(1, options.rounds + 1):
            federation.play_round(number, request)
            if communicator.is_server:
                print(f"round {number}", flush=True)
        federation.record_rounds()
    communicator.end(0)


if __name__ == "__main__":
    main()
