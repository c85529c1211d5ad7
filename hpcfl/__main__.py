"""``hpcfl`` and ``python -m hpcfl``: MPI first, then the command; a failing rank ends all ranks."""

import gc
import sys

from hpcfl.rounds import signals


def main() -> None:
    """Run the command line. Exit codes: 0 done, 2 bad input, 75 stopped early and resumable,
    else a failure."""
    from hpcfl.communication.mpi import connect

    communicator = connect()  # before any heavy import: see there
    try:
        from hpcfl.cli import command

        code = command(sys.argv[1:], communicator)
        signals.ignore()  # what is done is done, and all ranks have agreed on the code
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        if isinstance(error, KeyboardInterrupt):
            print("hpcfl: interrupted; the same command continues", file=sys.stderr)
            communicator.abort(130)
        from hpcfl.errors import explain

        print(f"hpcfl: {communicator.ranks[communicator.rank]} failed: {explain(error)}", file=sys.stderr)
        communicator.abort(1)
    try:
        communicator.end(code)
    finally:
        gc.freeze()  # else Python looks through all of torch for garbage before it leaves


if __name__ == "__main__":
    main()
