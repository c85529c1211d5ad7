"""Run the first rounds of an experiment for a race: ``[mpiexec -n RANKS] python
tests/benchmarks/play_rounds.py FILE --rounds N [--set SECTION.KEY=VALUE …]``.

Rank 0 prints "round N" at the end of each round. All written files are deleted.
"""

import argparse
from pathlib import Path

from round_times import prepare_rounds

from hpcfl.communication.connection import connect
from hpcfl.experiment import config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    communicator = connect()
    experiment = config.load(options.file, options.overrides)
    with prepare_rounds(experiment, communicator) as play_round:
        for number in range(1, options.rounds + 1):
            play_round(number)
            if communicator.is_server:
                print(f"round {number}", flush=True)
    communicator.end(0)


if __name__ == "__main__":
    main()
